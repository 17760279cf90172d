"""Times, sizes and durations as people read them."""

from deltalakedb.formatting import moment


def test_a_time_is_told_whatever_it_is() -> None:
    assert moment(None) is None
    assert moment(1_793_577_600_123) == "2026-11-02T00:00:00.123Z"
    assert moment(2**63 - 1) == f"{2**63 - 1} ms"  # beyond the year 9999, from a foreign log
