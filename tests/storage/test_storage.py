"""Object stores: what is created once, what is missing, and what an error may say."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from deltalakedb.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
    StorageUnavailableError,
)
from deltalakedb.storage import Storage, open_storage, table_location
from deltalakedb.storage.failures import message_of

from support.s3 import S3Server
from support.unprivileged import not_as_root

ODD_KEYS = ["a b/c%20d", "day=2026-01-01/x%2Fy.parquet", "é/ü.bin", "q'u\"o#t?e", "a:b/c+d&e"]


@pytest.fixture(params=["local", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return open_storage(f"memory:///{tmp_path.name}")
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return open_storage(f"s3://{server.new_bucket()}/a b", server.storage_options)
    return open_storage(f"{tmp_path}/a b%20c=1/table")


def test_what_was_put_is_there(storage: Storage) -> None:
    for key in ODD_KEYS:
        storage.put(key, b"one")
        assert storage.get(key) == b"one"
        assert storage.get_range(key, start=1, length=2) == b"ne"
        found = storage.head(key)
        assert found is not None
        assert (found.key, found.size) == (key, 3)
    assert sorted(info.key for info in storage.list()) == sorted(ODD_KEYS)


def test_times_are_milliseconds_that_have_passed(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.put("x", b"")
    for nanoseconds in (868_000_000, 868_500_500, 868_999_999, 1_000_000):
        os.utime(tmp_path / "x", ns=(0, 1_794_917_736 * 10**9 + nanoseconds))
        found = storage.head("x")
        assert found is not None
        assert found.modified_ms == 1_794_917_736_000 + nanoseconds // 1_000_000


def test_local_keys_are_file_names(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    for key in ODD_KEYS:
        storage.put(key, b"")
        assert (tmp_path / key).is_file()


def test_an_object_is_created_once(storage: Storage) -> None:
    assert storage.put_if_absent("_delta_log/0.json", b"first")
    assert not storage.put_if_absent("_delta_log/0.json", b"second")
    assert storage.get("_delta_log/0.json") == b"first"
    storage.put("_delta_log/0.json", b"third")
    assert storage.get("_delta_log/0.json") == b"third"


def test_of_many_who_create_one_wins(storage: Storage) -> None:
    storage.put("x", b"")
    ready = threading.Barrier(8)
    won: list[int] = []

    def create(number: int) -> None:
        ready.wait()
        if storage.put_if_absent("folder/one", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.get("folder/one") == str(won[0]).encode()


def test_listing_takes_a_folder_and_a_place_to_start_after(storage: Storage) -> None:
    for key in ("log/1", "log/2", "log/3", "logs/4", "other"):
        storage.put(key, b"")
    assert sorted(info.key for info in storage.list("log")) == ["log/1", "log/2", "log/3"]
    after = storage.list("log", start_after="log/1")
    assert sorted(info.key for info in after) == ["log/2", "log/3"]
    assert list(storage.list("nothing")) == []


def test_deleting_twice_is_as_good_as_once(storage: Storage) -> None:
    storage.put("x", b"")
    storage.delete("x")
    storage.delete("x")
    assert storage.head("x") is None
    with pytest.raises(ObjectNotFoundError, match="x"):
        storage.get("x")


def test_a_folder_that_is_not_there_is_empty_until_something_is_written(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "later"))
    assert list(storage.list()) == []
    assert storage.head("x") is None
    with pytest.raises(ObjectNotFoundError, match="does not exist"):
        storage.get("x")
    assert not (tmp_path / "later").exists()
    assert storage.put_if_absent("x", b"1")
    assert storage.get("x") == b"1"


def test_a_path_through_a_file_is_refused_for_good(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for act in (
        lambda: open_storage(str(tmp_path)).put("file/x", b""),
        lambda: open_storage(str(tmp_path / "file")).put("x", b""),
        lambda: open_storage(str(tmp_path)).get("a/../b"),
    ):
        with pytest.raises(StorageError) as caught:
            act()
        assert not caught.value.transient


def test_permissions_have_an_error_of_their_own(open_folder: Path) -> None:
    storage = open_storage(str(open_folder))
    storage.put("x", b"")
    (open_folder / "x").chmod(0)
    with not_as_root(), pytest.raises(StoragePermissionError):
        storage.get("x")


def test_a_store_that_does_not_answer_is_transient_and_no_secret_is_told() -> None:
    storage = open_storage(
        "s3://bucket/table",
        {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "aws_access_key_id": "the-id",
            "AWS_SECRET_ACCESS_KEY": "very-secret",
            "region": "eu-central-1",
            "AWS_ALLOW_HTTP": "true",
            "timeout": "1s",
        },
    )
    with pytest.raises(StorageUnavailableError) as caught:
        storage.get("x")
    assert caught.value.transient
    assert "s3://bucket/table/x" in str(caught.value)
    for text in (str(caught.value), repr(caught.value), repr(storage), repr(vars(caught.value))):
        assert "very-secret" not in text
        assert "the-id" not in text


def test_options_that_no_store_knows_are_named() -> None:
    with pytest.raises(ConfigurationError, match="nonsense") as caught:
        open_storage("s3://bucket/table", {"nonsense": "very-secret"})
    assert "very-secret" not in str(caught.value)
    wrong: list[object] = ["text", 7, {1: "x"}]
    for options in wrong:
        with pytest.raises(ConfigurationError, match="storage_options"):
            open_storage("s3://bucket/table", options)  # type: ignore[arg-type]


def test_what_is_created_without_settling_is_there_and_complete(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert storage.put_if_absent("_delta_log/0.json", b"first", settle=False)
    assert not storage.put_if_absent("_delta_log/0.json", b"other", settle=False)
    storage.settle("_delta_log")
    assert storage.get("_delta_log/0.json") == b"first"


def test_a_file_system_without_unnamed_files_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    storage = open_storage(str(tmp_path))
    assert storage.put_if_absent("log/0.json", b"first")
    assert not storage.put_if_absent("log/0.json", b"second")
    assert storage.get("log/0.json") == b"first"
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["0.json"]


def test_a_file_that_cannot_be_closed_leaves_no_other_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    storage = open_storage(str(tmp_path))
    close = os.close

    def fail(handle: int) -> None:
        close(handle)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "log").mkdir()
    monkeypatch.setattr("deltalakedb.storage.local_files.os.close", fail)
    with pytest.raises(StorageUnavailableError, match="Input/output"):
        storage.put_if_absent("log/0.json", b"first", settle=False)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["0.json"]


def test_what_a_killed_writer_left_behind_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.put("log/_last_checkpoint", b"{}")
    left = tmp_path / "log" / f"._last_checkpoint.{'0' * 32}.tmp"
    left.write_bytes(b"half")
    (tmp_path / "log" / ".hidden.tmp").write_bytes(b"")
    assert storage.clear_leftovers("log", older_than_seconds=3600) == 0
    assert storage.clear_leftovers("log", older_than_seconds=-1) == 1
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == [
        ".hidden.tmp",
        "_last_checkpoint",
    ]
    assert storage.clear_leftovers("nothing", older_than_seconds=-1) == 0


def test_a_clock_that_is_ahead_makes_no_unfinished_file_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(str(tmp_path))
    storage.put("log/_last_checkpoint", b"{}")
    left = tmp_path / "log" / f"._last_checkpoint.{'0' * 32}.tmp"
    left.write_bytes(b"half")
    monkeypatch.setattr(time, "time", lambda: 4_070_908_800.0)
    assert storage.clear_leftovers("log", older_than_seconds=3600) == 0


def test_a_store_tells_its_own_time(storage: Storage) -> None:
    before = time.time() * 1000
    now = storage.now_ms("log")
    assert before - 60_000 < now < time.time() * 1000 + 60_000
    assert list(storage.list()) == []


def test_a_store_without_conditional_writes_is_read_back(
    s3_server: S3Server, s3_bucket: str
) -> None:
    options = {**s3_server.storage_options, "conditional_put": "disabled"}
    storage = open_storage(f"s3://{s3_bucket}/table", options)
    assert storage.put_if_absent("_delta_log/0.json", b"first")
    assert not storage.put_if_absent("_delta_log/0.json", b"second")
    assert storage.get("_delta_log/0.json") == b"first"


# --- large objects, and objects that change -----------------------------------------------


def test_a_file_becomes_an_object_when_it_is_complete(storage: Storage) -> None:
    storage.put("log/x", b"old")
    with storage.writing("log/x") as file:
        file.write(b"new ")
        assert storage.get("log/x") == b"old"
        file.write(b"content")
    assert storage.get("log/x") == b"new content"
    assert [info.key for info in storage.list()] == ["log/x"]


def test_a_file_that_was_given_up_leaves_nothing(storage: Storage) -> None:
    storage.put("log/y", b"old")

    def give_up(key: str) -> None:
        with storage.writing(key) as file:
            file.write(b"half")
            raise ZeroDivisionError

    for key in ("log/x", "log/y"):
        with pytest.raises(ZeroDivisionError):
            give_up(key)
    assert storage.get("log/y") == b"old"
    assert [info.key for info in storage.list()] == ["log/y"]


def test_a_large_file_arrives_whole(storage: Storage) -> None:
    block = bytes(range(256)) * 4096
    with storage.writing("x") as file:
        for _ in range(13):
            file.write(block)
        assert file.tell() == 13 * len(block)
    assert storage.get("x") == block * 13


def test_where_nothing_can_be_written_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(StorageError),
        open_storage(str(tmp_path)).writing("file/x") as file,
    ):
        file.write(b"")


def test_an_update_sees_what_is_there(storage: Storage) -> None:
    seen: list[bytes | None] = []

    def change(to: bytes | None) -> bool:
        def changed(current: bytes | None) -> bytes | None:
            seen.append(current)
            return to

        return storage.update("log/x", changed)

    assert change(b"1")
    assert change(b"2")
    assert not change(None)
    assert storage.get("log/x") == b"2"
    assert seen == [None, b"1", b"2"]
    assert [info.key for info in storage.list()] == ["log/x"]


def test_no_update_is_lost(storage: Storage) -> None:
    ready = threading.Barrier(8)

    def add_one() -> None:
        ready.wait()
        for _ in range(10):
            storage.update("log/x", lambda current: str(int(current or b"0") + 1).encode())

    threads = [threading.Thread(target=add_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.get("log/x") == b"80"


def test_many_are_deleted_whether_they_are_there_or_not(storage: Storage) -> None:
    for number in range(5):
        storage.put(f"log/{number}", b"")
    storage.delete_many([f"log/{number}" for number in range(1, 9)])
    assert [info.key for info in storage.list()] == ["log/0"]
    storage.delete_many([])


def test_checksums_that_hadoop_keeps_beside_local_files_do_not_outlive_them(
    tmp_path: Path,
) -> None:
    storage = open_storage(str(tmp_path))
    stale = tmp_path / ".x.crc"
    storage.put("x", b"")

    def write_file() -> None:
        with storage.writing("x") as file:
            file.write(b"1")

    for act in (
        lambda: storage.put("x", b"1"),
        write_file,
        lambda: storage.update("x", lambda _: b"2"),
        lambda: storage.delete("x"),
    ):
        stale.write_bytes(b"crc")
        act()
        assert not stale.exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Generic S3 error: no route to host\nmore", "Generic S3 error: no route to host"),
        (
            '404 Not Found: <?xml version="1.0"?>\n<Code>NoSuchBucket</Code><Message>No</Message>',
            "404 Not Found: NoSuchBucket: No",
        ),
        ("status code: 403: <Error><Code>AccessDenied</Code>", "status code: 403: AccessDenied"),
        ('status code: 500: <?xml version="1.0"?>', "status code: 500"),
        ("", "OSError"),
    ],
)
def test_what_a_store_said_is_told_without_its_document(text: str, told: str) -> None:
    assert message_of(OSError(text) if text else OSError()) == told


@pytest.mark.parametrize("location", ["s3://b/my%20table", "s3a://b/t#1", "gs://b/t?2=3"])
def test_a_key_that_engines_read_in_two_ways_is_no_place_for_a_table(location: str) -> None:
    with pytest.raises(ConfigurationError, match=r"has a '[%#?]' in it"):
        table_location(location)


def test_files_may_be_called_anything(tmp_path: Path) -> None:
    assert table_location(str(tmp_path / "my%20table#1")).endswith("my%2520table%231")
    assert table_location("s3a://b/my table/") == "s3://b/my table"


def test_a_key_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"There is no file 'nowhere\.json'"):
        open_storage("gs://b/t", {"service_account": "nowhere.json"})


def test_local_files_are_listed_with_hidden_and_linked_ones(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "table"))
    for key in ("a/x", "a/.hidden", "a/x#1", "b/c/d"):
        storage.put(key, b"12")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "y").write_bytes(b"1")
    (tmp_path / "table" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "table" / "broken").symlink_to("nothing")
    (tmp_path / "table" / "empty").mkdir()
    found = {info.key: info.size for info in storage.list()}
    assert found == {"a/x": 2, "a/.hidden": 2, "a/x#1": 2, "b/c/d": 2, "linked/y": 1}
    assert [info.key for info in storage.list("b")] == ["b/c/d"]
    assert list(storage.list("a/x")) == []
    assert (storage.head("a"), storage.head("broken")) == (None, None)


def test_a_local_folder_that_cannot_be_listed_to_the_end_is_refused(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="symbolic links"):
        list(storage.list())
    (tmp_path / "loop").unlink()
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"")
    with pytest.raises(StorageError, match="not UTF-8"):
        list(storage.list())
