"""The WHEN clauses of a MERGE: what they are, and which may follow which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from deltalakedb.errors import ConfigurationError

Kind: TypeAlias = Literal["matched", "not matched", "not matched by source"]
Act: TypeAlias = Literal["update", "delete", "insert"]
ALL: Final = "*"
"""In the place of assignments: every column, from the column of the same name."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN clause."""

    kind: Kind
    act: Act
    condition: Any = None
    assignments: Mapping[str, Any] | str | None = None

    @property
    def counted_as(self) -> str:
        """Under which name the rows that it changes are counted."""
        where = "matched" if self.kind == "matched" else "source"
        return f"{where} {self.act}d"

    def shown(self) -> dict[str, str]:
        """As Delta's history has it."""
        told = {} if self.condition is None else {"predicate": str(self.condition)}
        return {**told, "actionType": self.act}


def check_clauses(clauses: Sequence[Clause]) -> None:
    """Refuse a MERGE without clauses, and clauses that would never be reached."""
    if not clauses:
        raise ConfigurationError(
            "The MERGE has no clause",
            fix="Say what happens, e.g. .whenMatchedUpdateAll() or .whenNotMatchedInsertAll()",
        )
    for kind in ("matched", "not matched", "not matched by source"):
        same = [clause for clause in clauses if clause.kind == kind]
        if any(clause.condition is None for clause in same[:-1]):
            raise ConfigurationError(
                f"A clause for rows that are {kind} has no condition, and others follow",
                why="They would never be reached",
                fix="Give it a condition, or make it the last one of its kind",
            )
