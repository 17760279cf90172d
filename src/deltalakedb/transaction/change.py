"""What a commit asks for, and what it became."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Self

from deltalakedb.actions import Action
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.store import TableRecord
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.state import TableState

getrandbits = SystemRandom().getrandbits
_VERSION_4 = 0x4000_8000_0000_0000_0000
_RANDOM_BITS = ~0xF000_C000_0000_0000_0000
AppTxn = tuple[str, int]


def new_uuid() -> str:
    """A random (version 4) UUID as text; what `str(uuid.uuid4())` gives, in a fifth of the time."""
    digits = f"{(getrandbits(128) & _RANDOM_BITS) | _VERSION_4:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@dataclass(slots=True, eq=False)
class Change:
    """One table's part of a transaction; nobody changes it once it is made.

    `actions` hold no commitInfo: that is made when the commit's version and time are known, from
    `info` (what the caller wants in it beyond our own fields), `operation` and the rest. `base` is
    the version the actions were made from; None creates the table. `commit_uuid` stays
    the same through every retry: by it a commit is found whose acknowledgement was lost.
    """

    table: TableRecord
    base: TableState | None
    actions: tuple[Action, ...]
    operation: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    read: ReadSet = field(default_factory=ReadSet)
    app_txn: AppTxn | None = None
    expected_version: int | None = None
    enforced: frozenset[str] = frozenset()
    replaces_all: bool = False
    allow_feature_drop: bool = False
    renames_to: str | None = None
    commit_uuid: str = field(default_factory=new_uuid)


@dataclass(frozen=True, slots=True)
class TableRead:
    """What a transaction has read of one table, from the version in `base`."""

    table: TableRecord
    base: TableState
    read: ReadSet


class Committed(int):
    """The version a commit became, with more to say.

    `timestamp` is its in-commit timestamp in milliseconds; `already_committed` says that this very
    work (the same app transaction) had been committed before, and nothing was written now;
    `attempts` counts how often the database transaction was tried.
    """

    timestamp: int
    already_committed: bool
    attempts: int
    commit_uuid: str | None
    transaction_id: str | None

    def __new__(
        cls,
        version: int,
        *,
        timestamp: int,
        already_committed: bool = False,
        attempts: int = 1,
        commit_uuid: str | None = None,
        transaction_id: str | None = None,
    ) -> Self:
        self = super().__new__(cls, version)
        self.timestamp = timestamp
        self.already_committed = already_committed
        self.attempts = attempts
        self.commit_uuid = commit_uuid
        self.transaction_id = transaction_id
        return self

    @property
    def version(self) -> int:
        """The version as a plain number."""
        return int(self)

    def __str__(self) -> str:
        return str(int(self))

    def __repr__(self) -> str:
        note = ", already committed" if self.already_committed else ""
        return f"<version {int(self)}{note}>"


def as_strings(values: Mapping[str, Any]) -> dict[str, str]:
    """Operation parameters and metrics as Delta keeps them: every value a string; by name."""
    if not values:
        return {}
    return {
        key: value if isinstance(value, str) else dumps(value)
        for key, value in sorted(values.items())
        if value is not None
    }
