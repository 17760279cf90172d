"""Commits that Spark and delta-rs made are accepted, but for those that break a rule on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from deltalakedb.actions import (
    Action,
    AddFile,
    Metadata,
    Protocol,
    RemoveFile,
    parse_commit,
)
from deltalakedb.errors import CommitRejectedError, InvalidLogError, UnsupportedFeatureError
from deltalakedb.transaction import check_live_files, touched_paths, validate_commit
from deltalakedb.transaction.rules import CONSTRAINT_RULES

REFUSED = {
    # Made by hand for tests of log replay: no schema, no metaData, two spellings of one path.
    ("delta-canonicalized-paths-normal-a", 0): "schema",
    ("delta-canonicalized-paths-normal-a", 1): "remove-live-file",
    ("delta-canonicalized-paths-special-a", 0): "schema",
    ("delta-canonicalized-paths-special-a", 1): "remove-live-file",
    ("delta-deltalog-state-reconstruction-from-checkpoint-missing-protocol", 0): "schema",
    ("delta-deltalog-state-reconstruction-without-metadata", 0): "first-version",
    ("delta-versions-not-contiguous", 0): "schema",
    ("delta-rs-delta-live-table", 0): "schema",
    # A feature that builds on in-commit timestamps, without them.
    ("delta-rs-data_err_logs__table_d", 0): "required-features",
    ("delta-rs-data_err_logs__table_f", 0): "required-features",
    # Actions from the future: fine to read, not to write.
    ("delta-spark__transaction_log_schema_evolvability", 4): "unknown-action",
    ("delta-spark__transaction_log_schema_evolvability", 5): "unknown-action",
}


def _commits(log: Path) -> Iterator[tuple[int, list[Action]]]:
    """The commits of a log from version 0 on, up to the first gap or damaged file."""
    files = sorted(file for file in log.iterdir() if re.fullmatch(r"\d{20}\.json", file.name))
    for version, file in enumerate(files):
        if int(file.stem) != version:
            return
        try:
            yield version, parse_commit(file.read_bytes(), file=file.name)
        except InvalidLogError:
            return


def test_real_commits_keep_the_rules(golden_dir: Path) -> None:
    refused: dict[tuple[str, int], str] = {}
    checked = 0
    enforced = frozenset({*CONSTRAINT_RULES, "icebergCompatV1", "icebergCompatV2"})
    for log in sorted(golden_dir.rglob("_delta_log")):
        name = log.parent.relative_to(golden_dir).as_posix()
        metadata: Metadata | None = None
        protocol: Protocol | None = None
        live: set[tuple[str, str]] = set()
        for version, actions in _commits(log):
            touched = set(touched_paths(actions))
            try:
                validate_commit(actions, metadata=metadata, protocol=protocol, enforced=enforced)
                check_live_files(actions, {key for key in live if key[0] in touched})
                checked += 1
            except UnsupportedFeatureError:
                pass
            except CommitRejectedError as error:
                refused[name, version] = error.rule
            for action in actions:
                if isinstance(action, Metadata):
                    metadata = action
                elif isinstance(action, Protocol):
                    protocol = action
                elif isinstance(action, RemoveFile):
                    live.discard((action.path, action.dv_id))
            live.update((a.path, a.dv_id) for a in actions if isinstance(a, AddFile))
            if metadata is None or protocol is None:
                break
    assert refused == REFUSED
    assert checked > 200
