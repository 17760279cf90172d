"""Which file a path of a log names, and whether it may be a file of its table."""

from __future__ import annotations

import os.path
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.actions.file_paths import ODD_PATH, check_segments, file_key, spellings
from deltalakedb.errors import DeltaLakeDbError, PathNotAllowedError
from deltalakedb.reading.filesystem import TableFiles
from deltalakedb.storage.locations import FilePlaces, Place


@pytest.mark.parametrize(
    ("location", "path", "place"),
    [
        ("file:///data/t%20x", "a%20b/c", Place("file", "", "/data/t x/a b/c")),
        ("file:///data/t", "x=A%252FA", Place("file", "", "/data/t/x=A%2FA")),
        ("file:///data/t", "file:/data/t/a%20b", Place("file", "", "/data/t/a b")),
        ("file:///data/t", "FILE:///data/t/a", Place("file", "", "/data/t/a")),
        ("file:///data/t", "file://localhost/data/t/a", Place("file", "", "/data/t/a")),
        ("file:///data/t", "/data/t/a", Place("file", "", "/data/t/a")),
        ("file:///data/t", "a:b/c", Place("file", "", "/data/t/a:b/c")),
        ("s3://Bucket/t", "a//b", Place("s3", "Bucket", "/t/a//b")),
        ("s3://bucket/t", "s3a://bucket/t/a", Place("s3", "bucket", "/t/a")),
        ("s3://bucket/t", "s3n://BUCKET/t/a", Place("s3", "BUCKET", "/t/a")),
        ("s3://bucket/t", "/t/a", Place("s3", "bucket", "/t/a")),
        ("gs://b", "gcs://b/a", Place("gs", "b", "/a")),
        ("abfss://c@acc.dfs.x/t", "abfss://c@acc.dfs.x/t/a", Place("abfss", "c@acc.dfs.x", "/t/a")),
    ],
)
def test_files_of_a_table(location: str, path: str, place: Place) -> None:
    assert FilePlaces(location).resolve(path) == place


ELSEWHERE = [
    ("file:///data/t", "../u/a"),
    ("file:///data/t", "a/../../u"),
    ("file:///data/t", "%2e%2e/u/a"),
    ("file:///data/t", "a/%2E./../u"),
    ("file:///data/t", "..%2Fu"),
    ("file:///data/t", "%2Fetc/passwd"),
    ("file:///data/t", "/etc/passwd"),
    ("file:///data/t", "file:///etc/passwd"),
    ("file:///data/t", "file:/data/t/../u"),
    ("file:///data/t", "file:///data/t%2F..%2Fu"),
    ("file:///data/t", "file:///data/tt/a"),
    ("file:///data/t", "file://host/data/t/a"),
    ("file:///data/t", "http://169.254.169.254/latest"),
    ("file:///data/t", "https://example.com/a"),
    ("file:///data/t", "hdfs://n/data/t/a"),
    ("file:///data/t", "s3:/bucket/a"),
    ("file:///data/t", "s3://bucket/a"),
    ("s3://bucket/t", "file:///t/a"),
    ("s3://bucket/t", "s3://other/t/a"),
    ("s3://bucket/t", "s3://bucket/u/a"),
    ("s3://bucket/t", "s3://user@bucket/t/a"),
    ("s3://bucket/t", "s3://bucket:80/t/a"),
    ("s3://bucket/t", "/u/a"),
    ("s3://bucket/t", "gs://bucket/t/a"),
    ("az://c/t", "abfss://c@evil.dfs.x/t/a"),
    ("abfss://c@acc.dfs.x/t", "abfss://c@evil.dfs.x/t/a"),
]


@pytest.mark.parametrize(("location", "path"), ELSEWHERE)
def test_what_lies_elsewhere_is_refused(location: str, path: str) -> None:
    with pytest.raises(PathNotAllowedError) as caught:
        FilePlaces(location).resolve(path)
    assert all((caught.value.what, caught.value.why, caught.value.fix))
    with pytest.raises(PathNotAllowedError):
        TableFiles(location).open(path)


def test_allowed_roots() -> None:
    places = FilePlaces("s3://bucket/t", ["s3://other/source", "file:///data/my%20source"])
    assert places.resolve("s3a://other/source/a").store == "s3://other"
    assert places.resolve("file:/data/my%20source/a").path == "/data/my source/a"
    for path in ("s3://other/sourcerer/a", "s3://other/source/../a", "file:///data/a"):
        with pytest.raises(PathNotAllowedError):
            places.resolve(path)


def test_a_root_is_the_folder_behind_its_links(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "out").symlink_to("/etc")
    for location in ("real", "link"):
        places = FilePlaces((tmp_path / location).as_uri())
        for path in ("real", "link"):
            place = places.resolve(f"{(tmp_path / path).as_uri()}/sub/a")
            assert place.path == f"{tmp_path}/{path}/sub/a"
        # A folder that somebody has linked into the table is a folder of the table.
        assert places.resolve("out/passwd").path.endswith("/out/passwd")
        with pytest.raises(PathNotAllowedError):
            places.resolve("file:///etc/passwd")


def test_a_new_path_has_one_spelling() -> None:
    places = FilePlaces("file:///data/t", ["file:///data/source"])
    for path in ("a", "a b/c", "a%20b", "x=%252F/y", "file:///data/source/a"):
        places.check_new(path)
    for path in ("file:///data/t/a", "/data/source/a", "a//b", "./a", "a/./b", "a/", "", "/a"):
        with pytest.raises(PathNotAllowedError):
            places.check_new(path)
    FilePlaces("file:///data/t", ["file:///data/t"]).check_new("file:///data/t/a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a%20b/c", "a b/c"),
        ("a//b", "a/b"),
        ("./a/./b", "a/b"),
        ("%2e/a", "a"),
        ("file:/x/a", "file:///x//a"),
        ("s3a://b/x", "s3://B/x"),
    ],
)
def test_two_spellings_are_one_file(one: str, other: str) -> None:
    assert file_key(one) == file_key(other)


def test_other_files_are_other_files() -> None:
    keys = {
        file_key(path) for path in ("a", "a/b", "b", "a%2520b", "a%20b", "A", "/a", "..a", ".a")
    }
    assert len(keys) == 9


SEGMENTS = st.sampled_from(["a", "b c", "", ".", "..", "%2e", "%2E%2e", "%2F", "x=1", "a.b", "..."])
PATHS = st.builds(
    lambda start, parts: start + "/".join(parts),
    st.sampled_from(["", "/", "file:/", "file:///", "s3://b/", "http://h/", "s3:/"]),
    st.lists(SEGMENTS, max_size=5),
)


@given(path=PATHS)
def test_what_is_not_odd_needs_no_check(path: str) -> None:
    """Files of large tables are looked at by this one expression."""
    if re.search(ODD_PATH, path) is None:
        check_segments(path, strictly=True)
        assert FilePlaces("file:///data/t").resolve(path).path.startswith("/data/t/")


@given(path=PATHS)
def test_no_path_leads_out_of_its_table(path: str) -> None:
    try:
        place = FilePlaces("file:///data/t").resolve(path)
    except DeltaLakeDbError:
        return
    assert place.scheme == "file"
    assert f"{os.path.normpath(place.path)}/".startswith("/data/t/")


@given(path=PATHS)
def test_spellings_name_the_same_file(path: str) -> None:
    for spelled in spellings(path):
        assert file_key(spelled) == file_key(path) or "%" in path


@pytest.mark.parametrize(
    ("location", "path", "identity"),
    [
        ("s3://b/t", "sub/a%20b", "sub/a b"),
        ("s3://b/t", "sub//a", "sub//a"),
        ("s3://b/t", "s3a://B/t/sub/a", "sub/a"),
        ("s3://b/t", "s3://b/u/a", "s3://b/u/a"),
        ("s3://b/t", "s3://b/tt/a", "s3://b/tt/a"),
        ("s3://b", "s3://b/a", "a"),
        # Who writes az:// has the account elsewhere: rather keep a file too many.
        ("az://c/t", "abfss://c@account.dfs.core.windows.net/t/a", "a"),
        ("abfss://c@account.dfs.x/t", "az://c/t/a", "a"),
        ("abfss://c@account.dfs.x/t", "az://other/t/a", "az://other/t/a"),
        ("file:///data/t", "../t/sub/a", "sub/a"),
        ("file:///data/t", "sub/../../t//sub/./a", "sub/a"),
        ("file:///data/t", "../u/a", "file:///data/u/a"),
    ],
)
def test_an_object_is_needed_by_the_file_that_a_path_leads_to(
    location: str, path: str, identity: str
) -> None:
    """Also by paths that are refused today, which a catalog may have."""
    places = FilePlaces(location)
    assert list(places.identities(path)) == [identity]
    if "://" not in identity:
        assert places.identity_of_key(identity) == identity


def test_a_file_of_no_known_store_is_no_object_of_the_table() -> None:
    assert not list(FilePlaces("file:///data/t").identities("http://host/data/t/a"))
