"""What planning asks of an engine's SQL, and what the engines have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "whole", "real", "decimal", "bool", "date", "string", "instant", "wall", "legacy", "text"
]
"""`instant` is a timestamp with a zone, `legacy` one without (a zone nobody knows), `wall` a
timestamp_ntz. `text` is a partition value as it is."""

NUMBERS: Final = ("whole", "real", "decimal")


@dataclass(frozen=True, slots=True)
class Extraction:
    """One value: of the statistics at `path`, or of the partition column `path[0]`."""

    path: tuple[str, ...]
    kind: Kind
    of_partition: bool = False
    is_high: bool = False


class Parameters:
    """The values of a statement, by the names that its text has."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}

    def add(self, value: object) -> str:
        """The placeholder of one more value."""
        name = f"p{len(self.values)}"
        self.values[name] = value
        return f":{name}"


class PruningEngine(ABC):
    """The SQL of one engine. A condition names its values `v.c0`, `v.c1` and so on."""

    def can_find(self, path: tuple[str, ...]) -> bool:
        """Whether a key of JSON can be named; what cannot be is unknown."""
        return all(is_unicode(step) for step in path)

    def can_compare(self, text: str) -> bool:
        """Whether text can be a parameter."""
        return is_unicode(text)

    def parameter(self, value: object, kind: Kind, parameters: Parameters) -> str:  # noqa: ARG002
        """A placeholder that compares with values of this kind."""
        return parameters.add(value)

    @abstractmethod
    def wrap(
        self,
        condition: str,
        values: Sequence[Extraction],
        *,
        stats: str,
        partition_values: str,
        parameters: Parameters,
    ) -> str:
        """The condition over a row of files; unknown is true."""

    def typed(self, value: Extraction, raw: str) -> str:
        """The value out of what the JSON holds; NULL where it is of another type."""
        if value.of_partition:
            if value.kind == "text":
                return raw
            if value.kind == "bool":
                return f"CASE lower({raw}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 END"
            if value.kind in NUMBERS:
                return self.number_of_text(raw, value.kind)
            return self.read_text(raw, value)
        if value.kind == "bool":
            return self.json_bool(raw)
        if value.kind in NUMBERS:
            return self.json_number(raw, value.kind)
        test, text = self.json_text(raw)
        return f"CASE WHEN {test} THEN {self.read_text(text, value)} END"

    def read_text(self, text: str, value: Extraction) -> str:
        """A date, a time or a string out of its text."""
        if value.kind == "string":
            return self.string(text, value)
        if value.kind == "date":
            return self.date(text)
        if value.kind == "instant":
            return self.instant(text)
        return self.wall_clock(text, zoned=value.kind == "wall")

    def string(self, text: str, value: Extraction) -> str:
        # Writers of old marked a cut maximum with U+FFFD, which is not above every character.
        if value.is_high:
            return f"replace({text}, chr(65533), chr(1114111))"
        return text

    def date(self, text: str) -> str:
        return (
            f"CASE WHEN {text} LIKE '____-__-__' AND translate({text}, '0123456789', '') = '--'"
            f" THEN {text} END"
        )

    def instant(self, text: str) -> str:
        return (
            f"CASE WHEN {text} LIKE '____-__-__T__:__:__%Z'"
            f" AND translate({text}, '0123456789', '') IN ('--T::Z', '--T::.Z')"
            f" THEN rtrim({text}, 'Z')"
            f" WHEN {text} LIKE '____-__-__ __:__:__%' OR {text} LIKE '____-__-__T__:__:__%'"
            f" THEN {self.instant_with_offset(text)} END"
        )

    def wall_clock(self, text: str, *, zoned: bool) -> str:
        clock = f"replace({text}, ' ', 'T')"
        forms = "'--T::', '--T::.'" + (", '--T::Z', '--T::.Z'" if zoned else "")
        return (
            f"CASE WHEN {clock} LIKE '____-__-__T__:__:__%'"
            f" AND translate({clock}, '0123456789', '') IN ({forms})"
            f" THEN rtrim({clock}, 'Z') END"
        )

    def instant_with_offset(self, text: str) -> str:
        raise NotImplementedError

    @abstractmethod
    def json_text(self, raw: str) -> tuple[str, str]:
        """A test for a JSON string, and its text."""

    @abstractmethod
    def json_number(self, raw: str, kind: Kind) -> str:
        """A JSON number."""

    @abstractmethod
    def json_bool(self, raw: str) -> str:
        """A JSON boolean as 0 or 1."""

    @abstractmethod
    def number_of_text(self, text: str, kind: Kind) -> str:
        """The number that a partition value spells."""


def is_unicode(text: str) -> bool:
    """Whether text has an encoding: half a surrogate pair has none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
