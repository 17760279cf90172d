"""Each fault of an S3 server by itself: told as one that passes, and settled by the next try."""

from collections.abc import Iterator

import pytest

from deltalakedb.errors import StorageUnavailableError
from deltalakedb.storage import Storage, open_storage
from faults.proof import check_uploads

from support.faulty_s3 import AFTER, BEFORE, WRITING, FaultyS3
from support.s3 import S3Server

KEY = "_delta_log/00000000000000000000.json"
LARGE = 11 * 1024 * 1024
"""More than goes in one request."""


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyS3]:
    with FaultyS3(s3_server, rate=0.0) as proxy:
        yield proxy


@pytest.fixture
def storage(proxy: FaultyS3, s3_bucket: str) -> Storage:
    return open_storage(f"s3://{s3_bucket}/t", proxy.storage_options, patient=False)


@pytest.mark.parametrize("kind", [*BEFORE, *AFTER, *WRITING])
def test_a_put_that_fails_may_be_tried_again(proxy: FaultyS3, storage: Storage, kind: str) -> None:
    proxy.always = (kind, "PUT")
    try:
        created = storage.put_if_absent(KEY, b"content")
    except StorageUnavailableError as error:
        assert error.transient  # noqa: PT017 - some kinds are survived by a retry below us
    else:
        # An earlier try of the same call may have created it; half of an empty answer is all of it.
        assert kind in AFTER
        assert created is (kind == "answer halved")
    proxy.always = None
    # It is there if, and only if, the server has heard of it.
    assert storage.put_if_absent(KEY, b"other") is (kind in (*BEFORE, *WRITING))
    assert storage.get(KEY) == (b"content" if kind in AFTER else b"other")
    assert proxy.violations == []


@pytest.mark.parametrize("kind", [*BEFORE, *AFTER])
def test_a_get_that_fails_may_be_tried_again(proxy: FaultyS3, storage: Storage, kind: str) -> None:
    storage.put(KEY, b"content" * 1000)
    proxy.always = (kind, "GET")
    with pytest.raises(StorageUnavailableError) as caught:
        storage.get(KEY)
    assert caught.value.transient
    proxy.always = None
    assert storage.get(KEY) == b"content" * 1000


@pytest.mark.parametrize("kind", ["refused", "cut off", "slow down"])
def test_a_large_upload_that_fails_leaves_no_parts(
    proxy: FaultyS3, s3_server: S3Server, s3_bucket: str, kind: str
) -> None:
    options = {**proxy.storage_options, "timeout": "10s"}
    storage = open_storage(f"s3://{s3_bucket}/t", options, patient=False)
    proxy.always = (kind, "partNumber=2")
    with pytest.raises(StorageUnavailableError), storage.writing("large") as file:
        file.write(bytes(LARGE))
    proxy.always = None
    assert storage.head("large") is None
    check_uploads(s3_server, s3_bucket)
    with storage.writing("large") as file:
        file.write(bytes(LARGE))
    assert storage.get("large") == bytes(LARGE)
