"""What writers say of their commits, before and after each one; it survives their death.

A line is one `write` to a file opened for appending, so whatever a killed process wrote before it
died is there, but for its very last line, which may be cut short and is then ignored.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any


class Outcome(Enum):
    """What a writer was told about a commit."""

    IN_FLIGHT = "in flight"
    """Nothing: it died before it heard."""
    ACKNOWLEDGED = "acknowledged"
    ALREADY = "already"
    """Its app transaction had been recorded before: nothing was written for it."""
    REFUSED = "refused"
    """An error that says that nothing was written."""
    UNKNOWN = "unknown"
    """The error that says that it may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a commit does to one table."""

    adds: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Try:
    """One commit as its writer journalled it."""

    key: str
    operation: str
    parts: Mapping[str, Part]
    app_txn: tuple[str, int] | None = None
    outcome: Outcome = Outcome.IN_FLIGHT
    error: str = ""
    message: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)
    commit_uuids: Mapping[str, str | None] = field(default_factory=dict)
    resolved: bool = False
    """Whether the answer to COMMIT was lost, and the commit then found in the ledger."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The files that a transaction saw of one table, in one partition or in all of it."""

    version: int
    paths: frozenset[str]
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of some tables at what should be one instant.

    `key` is that of the commit which depends on it, or its own.
    """

    key: str
    sights: Mapping[str, Sight]


@dataclass(frozen=True, slots=True)
class Story:
    """A whole journal."""

    path: Path
    tries: tuple[Try, ...]
    ended: bool
    """Whether the writer came to its end, and was not killed."""
    reads: int
    violations: tuple[str, ...]
    looks: tuple[Look, ...] = ()

    def count(self, outcome: Outcome) -> int:
        """How many commits had that outcome."""
        return sum(one.outcome is outcome for one in self.tries)


class Journal:
    """The file of one life of one writer or reader."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _write(self, event: str, **fields: Any) -> None:
        os.write(self._file, json.dumps({"event": event, **fields}).encode() + b"\n")

    def trying(
        self,
        key: str,
        operation: str,
        parts: Mapping[str, Part],
        app_txn: tuple[str, int] | None = None,
    ) -> None:
        """Announce a commit that is made next."""
        shown = {name: [part.adds, part.removes] for name, part in parts.items()}
        self._write("trying", key=key, operation=operation, parts=shown, app_txn=app_txn)

    def heard(
        self,
        key: str,
        outcome: Outcome,
        *,
        versions: Mapping[str, int] | None = None,
        commit_uuids: Mapping[str, str | None] | None = None,
        error: BaseException | None = None,
        resolved: bool = False,
    ) -> None:
        """Record what the commit became."""
        self._write(
            "heard",
            key=key,
            outcome=outcome.value,
            versions=versions or {},
            commit_uuids=commit_uuids or {},
            error=type(error).__name__ if error else "",
            message=str(error) if error else "",
            resolved=resolved,
        )

    def saw(self, key: str, sights: Mapping[str, Sight]) -> None:
        """Record what was seen of some tables, before anything that depends on it is tried."""
        shown = {n: [one.version, sorted(one.paths), one.partition] for n, one in sights.items()}
        self._write("saw", key=key, sights=shown)

    def read(self) -> None:
        """Count one look at the tables that found nothing wrong."""
        self._write("read")

    def violation(self, text: str) -> None:
        """Record something that must never be."""
        self._write("violation", text=text)

    def end(self) -> None:
        """The writer ends of itself."""
        self._write("end")


def read_journal(path: Path) -> Story:
    """The journal of `path`; a last line without its end is left out."""
    tries: dict[str, Try] = {}
    violations: list[str] = []
    looks: list[Look] = []
    ended, reads = False, 0
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in map(json.loads, lines):
        event = line.pop("event")
        if event == "trying":
            parts = {n: Part(tuple(p[0]), tuple(p[1])) for n, p in line["parts"].items()}
            app_txn = line["app_txn"] and (line["app_txn"][0], line["app_txn"][1])
            tries[line["key"]] = Try(line["key"], line["operation"], parts, app_txn)
        elif event == "heard":
            outcome = Outcome(line.pop("outcome"))
            tries[line["key"]] = replace(tries[line["key"]], outcome=outcome, **line)
        elif event == "violation":
            violations.append(line["text"])
        elif event == "saw":
            seen = {n: Sight(s[0], frozenset(s[1]), s[2]) for n, s in line["sights"].items()}
            looks.append(Look(line["key"], seen))
        elif event == "read":
            reads += 1
        else:
            ended = True
    return Story(path, tuple(tries.values()), ended, reads, tuple(violations), tuple(looks))


def read_journals(paths: Iterable[Path]) -> list[Story]:
    """Every journal, in the order of the names."""
    return [read_journal(path) for path in sorted(paths)]
