"""Pages that need an S3 server, or nothing at all, are run as they stand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from deltalake import write_deltalake

from doc_blocks import run_page
from fix_s3 import S3Server

# The server of the tests has no TLS, which has to be allowed.
PLAIN = {
    '{"region": "eu-central-1"}': '{"region": "eu-central-1", "allow_http": "true"}',
    "region=eu-central-1": "region=eu-central-1 --storage-option allow_http=true",
}


@pytest.fixture
def my_bucket(s3_server: S3Server, desk: Path) -> str:
    """`my-bucket` on an S3 server that the environment names, as it would name AWS's."""
    options = s3_server.storage_options
    os.environ.update(
        AWS_ACCESS_KEY_ID=options["aws_access_key_id"],
        AWS_SECRET_ACCESS_KEY=options["aws_secret_access_key"],
        AWS_ENDPOINT_URL=options["endpoint_url"],
    )
    return s3_server.new_bucket("my-bucket")


def test_object_stores(my_bucket: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {"private_key": key.decode(), "private_key_id": "1", "client_email": "a@b"}
    (desk / "key.json").write_text(json.dumps({**account, "gcs_base_url": "https://localhost"}))
    run_page("docs/how-to/object-stores.md", PLAIN)
    assert capsys.readouterr().out.splitlines() == [
        "published 3",
        "Storage('gs://my-bucket/orders')",
        "Storage('az://container/orders')",
    ]


def test_importing(my_bucket: str, s3_server: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    options = {**s3_server.storage_options, "conditional_put": "etag"}
    for _ in range(2):
        write_deltalake(
            f"s3://{my_bucket}/old", pa.table({"id": [1]}), mode="append", storage_options=options
        )
    run_page("docs/how-to/import.md", PLAIN)
    assert capsys.readouterr().out.splitlines() == ["1 2", "False"]


def test_what_others_see_of_a_transaction(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/concepts/mirror.md")
    assert capsys.readouterr().out.splitlines() == ["[0, 0] [1, 1]", "[1, 0]", "[1, 1]", "1"]
