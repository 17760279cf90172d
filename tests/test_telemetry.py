"""What a commit tells: metrics, one structured event, and spans where someone listens."""

import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from deltalakedb.errors import (
    CommitRejectedError,
    ConcurrentDeleteDeleteError,
    UnexpectedVersionError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.lake import add, new_lake_table, remove


@pytest.fixture
def table(lake: Lake) -> Table:
    """An empty table."""
    return new_lake_table(lake)


# --- metrics ------------------------------------------------------------------------------


def _counts(lake: Lake) -> dict[str, float]:
    read = lake.metrics.read()
    names = (
        "versions_committed_total",
        "commit_conflicts_total",
        "commit_rebases_total",
        "commit_retries_total",
    )
    return {name: read.get(name, 0) for name in names}


def test_versions_and_latency_are_counted(lake: Lake, table: Table) -> None:
    for n in range(3):
        table.commit([add(f"{n}.parquet")])
    read = lake.metrics.read()
    assert read["versions_committed_total"] == 4
    latency = read["commit_latency_ms"]
    assert latency["count"] == 4
    assert latency["sum"] > 0
    buckets = list(latency["buckets"].values())
    assert buckets == sorted(buckets)
    assert buckets[-1] == 4


def test_a_transaction_counts_each_table_and_takes_its_time_once(lake: Lake) -> None:
    for name in ("a", "b"):
        new_lake_table(lake, name)
    before = lake.metrics.read()["commit_latency_ms"]["count"]
    with lake.transaction() as tx:
        for name in ("a", "b"):
            tx.table(name).add_actions([add("a.parquet")])
    assert lake.metrics.read()["versions_committed_total"] == 4
    assert lake.metrics.read()["commit_latency_ms"]["count"] == before + 1


def test_rebases_conflicts_and_retries_are_counted(lake: Lake, table: Table) -> None:
    table.commit([add("a.parquet")])
    stale = [lake.table(table.name) for _ in range(4)]
    assert {handle.version for handle in stale} == {1}
    table.commit([remove("a.parquet")])
    before = _counts(lake)
    assert before["commit_conflicts_total"] == before["commit_rebases_total"] == 0

    stale[0].commit([add("b.parquet")])
    assert _counts(lake)["commit_rebases_total"] == 1
    with pytest.raises(ConcurrentDeleteDeleteError):
        stale[1].commit([remove("a.parquet")])
    assert _counts(lake)["commit_conflicts_total"] == 1
    with pytest.raises(UnexpectedVersionError):
        stale[2].commit([add("c.parquet")], expected_version=1)
    assert _counts(lake)["commit_conflicts_total"] == 2
    for n in range(70):
        table.commit([add(f"{n}.parquet")])
    assert _counts(lake)["commit_retries_total"] == 0
    stale[3].commit([add("late.parquet")])
    assert _counts(lake)["commit_retries_total"] == 1
    assert _counts(lake)["versions_committed_total"] == table.refresh() + 1


def test_what_was_not_committed_is_not_counted(lake: Lake, table: Table) -> None:
    table.commit([add("a.parquet")], app_txn=("app", 1))
    table.commit([add("a.parquet")], app_txn=("app", 1))
    with pytest.raises(CommitRejectedError):
        table.commit([remove("missing.parquet")])
    assert _counts(lake)["versions_committed_total"] == 2


def test_lakes_count_for_themselves(lake: Lake, table: Table, catalog_url: str) -> None:
    import deltalakedb

    with deltalakedb.connect(catalog_url, mirror="worker") as other:
        other.table(table.name).commit([add("a.parquet")])
        assert other.metrics.read()["versions_committed_total"] == 1
    assert lake.metrics.read()["versions_committed_total"] == 1


# --- events -------------------------------------------------------------------------------


def _events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        record.__dict__["fields"]
        for record in caplog.records
        if record.name == "deltalakedb" and record.__dict__.get("event") == "commit"
    ]


def test_a_commit_is_one_structured_event(
    lake: Lake, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.commit([add("a.parquet", size=70)])
    with caplog.at_level(logging.INFO, logger="deltalakedb"):
        table.commit(
            [remove("a.parquet"), add("b.parquet", size=30), add("c.parquet", size=5)],
            operation="MERGE",
        )
    (fields,) = _events(caplog)
    assert fields.pop("latency_ms") > 0
    assert fields == {
        "table": "sales.orders",
        "table_id": table.table_id,
        "version": 2,
        "operation": "MERGE",
        "adds": 2,
        "removes": 1,
        "bytes_added": 35,
        # The remove does not say how large the file was.
        "bytes_removed": 0,
        "attempts": 1,
        "transaction_id": None,
    }
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    message = record.getMessage()
    assert message.startswith("commit table=sales.orders ")
    assert "version=2 operation=MERGE adds=2 removes=1 bytes_added=35" in message
    # What a JSON formatter would write.
    json.dumps(fields)


def test_a_transaction_is_one_event_for_each_table(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        new_lake_table(lake, name)
    with caplog.at_level(logging.INFO, logger="deltalakedb"), lake.transaction() as tx:
        for name in ("a", "b"):
            tx.table(name).add_actions([add("a.parquet")])
    events = _events(caplog)
    assert [(fields["table"], fields["version"]) for fields in events] == [("a", 1), ("b", 1)]
    assert {fields["transaction_id"] for fields in events} == {tx.results["a"].transaction_id}


def test_what_was_not_committed_is_no_event(
    lake: Lake, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.commit([add("a.parquet")], app_txn=("app", 1))
    with caplog.at_level(logging.INFO, logger="deltalakedb"):
        table.commit([add("a.parquet")], app_txn=("app", 1))
        with pytest.raises(CommitRejectedError):
            table.commit([remove("missing.parquet")])
    assert _events(caplog) == []


def test_nobody_pays_for_an_event_that_nobody_wants(
    lake: Lake, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="deltalakedb"):
        table.commit([add("a.parquet")])
    assert caplog.records == []


# --- spans --------------------------------------------------------------------------------


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Whatever this test traces; the global tracer of the process stays as it is."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def _commits(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [s for s in exporter.get_finished_spans() if s.name == "deltalakedb.commit"]


def test_the_sql_transaction_is_a_span(spans: InMemorySpanExporter, lake: Lake) -> None:
    tables = [new_lake_table(lake, name) for name in ("a", "b")]
    spans.clear()
    tables[0].commit([add("a.parquet")])
    (span,) = _commits(spans)
    assert dict(span.attributes or {}) == {"tables": 1}
    assert span.status.status_code is not StatusCode.ERROR
    spans.clear()
    with lake.transaction() as tx:
        for name in ("a", "b"):
            tx.table(name).add_actions([add("b.parquet")])
    (span,) = _commits(spans)
    assert dict(span.attributes or {}) == {"tables": 2}


def test_a_refused_commit_is_a_span_with_its_error(
    spans: InMemorySpanExporter, lake: Lake, table: Table
) -> None:
    spans.clear()
    with pytest.raises(CommitRejectedError):
        table.commit([remove("missing.parquet")])
    (span,) = _commits(spans)
    assert span.status.status_code is StatusCode.ERROR
    (event,) = span.events
    assert "CommitRejectedError" in str((event.attributes or {})["exception.type"])


def test_commits_need_no_opentelemetry(tmp_path: Path) -> None:
    """The package is optional: without it, commits go on and nothing is traced."""
    script = textwrap.dedent(
        f"""
        import sys
        sys.modules["opentelemetry"] = None
        import deltalakedb
        with deltalakedb.connect("sqlite:///{tmp_path}/lake.db", mirror="worker") as lake:
            schema = '{{"type":"struct","fields":[]}}'
            table = lake.create_table("t", location="{tmp_path}/t", schema=schema)
            print(table.set_properties({{"owner": "me"}}))
        assert not [name for name in sys.modules if name.startswith("opentelemetry.")]
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["1"]), done.stderr
