from __future__ import annotations

import pytest

from deltalakedb.actions import AddFile, CommitInfo, DeletionVectorDescriptor, RemoveFile, z85
from deltalakedb.errors import InvalidActionError


def test_the_unique_id_of_a_deletion_vector_tells_no_offset_from_offset_zero() -> None:
    assert DeletionVectorDescriptor("u", "abc", 1, 1).unique_id == "uabc"
    assert DeletionVectorDescriptor("u", "abc", 1, 1, offset=0).unique_id == "uabc@0"


def test_a_file_without_deletion_vector_has_the_empty_id() -> None:
    vector = DeletionVectorDescriptor("u", "abc", 1, 1)
    assert AddFile("a", {}, 1, 1, data_change=True).dv_id == ""
    assert RemoveFile("a", data_change=True).dv_id == ""
    assert AddFile("a", {}, 1, 1, data_change=True, deletion_vector=vector).dv_id == "uabc"
    assert RemoveFile("a", data_change=True, deletion_vector=vector).dv_id == "uabc"


def test_the_file_of_a_deletion_vector_follows_from_its_id() -> None:
    # The example of the protocol's text.
    with_prefix = DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, offset=4)
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert with_prefix.file_path() == f"ab/{name}"
    assert DeletionVectorDescriptor("u", "^-aqEH.-t@S}K{vb[*k^", 40, 6).file_path() == name


def test_absolute_and_inline_deletion_vectors() -> None:
    assert DeletionVectorDescriptor("p", "s3://b/x%20y.bin", 1, 1).file_path() == "s3://b/x%20y.bin"
    assert (
        DeletionVectorDescriptor(
            "i", "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 40, 6
        ).file_path()
        is None
    )


@pytest.mark.parametrize(
    ("kind", "text"), [("u", "short"), ("x", "^-aqEH.-t@S}K{vb[*k^"), ("u", '"' * 20)]
)
def test_a_damaged_descriptor_has_no_file(kind: str, text: str) -> None:
    with pytest.raises(InvalidActionError):
        DeletionVectorDescriptor(kind, text, 1, 1).file_path()


def test_z85_knows_the_example_of_its_specification() -> None:
    data = bytes.fromhex("864fd26fb559f75b")
    assert z85.encode(data) == "HelloWorld"
    assert z85.decode("HelloWorld") == data


@pytest.mark.parametrize("text", ["abcd", "#####", "ab de"])
def test_z85_refuses_what_it_cannot_be(text: str) -> None:
    with pytest.raises(InvalidActionError, match="Z85"):
        z85.decode(text)


def test_z85_encodes_whole_words_only() -> None:
    with pytest.raises(InvalidActionError, match="four"):
        z85.encode(b"abc")


def test_commit_info_shows_the_customary_fields() -> None:
    info = CommitInfo(
        {
            "timestamp": 1,
            "inCommitTimestamp": 2,
            "readVersion": 3,
            "operation": "WRITE",
            "isolationLevel": "Serializable",
            "engineInfo": "e",
            "txnId": "t",
            "isBlindAppend": True,
            "operationParameters": {"mode": "Append"},
            "operationMetrics": {"numFiles": "1"},
        }
    )
    assert (info.timestamp, info.in_commit_timestamp, info.read_version) == (1, 2, 3)
    assert (info.operation, info.isolation_level) == ("WRITE", "Serializable")
    assert (info.engine_info, info.txn_id) == ("e", "t")
    assert info.is_blind_append is True
    assert info.operation_parameters == {"mode": "Append"}
    assert info.operation_metrics == {"numFiles": "1"}


def test_commit_info_of_other_shapes_is_not_believed() -> None:
    info = CommitInfo(
        {"timestamp": "soon", "operation": 5, "isBlindAppend": "yes", "readVersion": True}
    )
    assert info.timestamp is None
    assert info.operation is None
    assert info.is_blind_append is None
    assert info.read_version is None
    assert info.operation_metrics is None
