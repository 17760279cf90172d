"""`_last_checkpoint`: it names the newest checkpoint to readers, which need not list the log.

Guarantees:

- `parse_hint` returns None for a damaged file, as readers ignore it.
- `version`, `size` and `parts` come first: there are readers that read no further.
- The checksum is the MD5 of the canonical form that the protocol defines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from deltalakedb.actions import Action, Sidecar, to_dict
from deltalakedb.actions.jsonvalue import loads
from deltalakedb.errors import DeltaLakeDbError

_CHECKSUM: Final = "checksum"


@dataclass(frozen=True, slots=True)
class V2Hint:
    """The top file of a V2 checkpoint, and its actions unless they are many."""

    path: str
    size_in_bytes: int
    modification_time: int
    non_file_actions: Sequence[Action] | None = None
    sidecars: Sequence[Sidecar] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The value of `v2Checkpoint`."""
        document: dict[str, Any] = {
            "path": self.path,
            "sizeInBytes": self.size_in_bytes,
            "modificationTime": self.modification_time,
        }
        if self.non_file_actions is not None:
            document["nonFileActions"] = [to_dict(action) for action in self.non_file_actions]
        if self.sidecars is not None:
            document["sidecarFiles"] = [to_dict(sidecar)["sidecar"] for sidecar in self.sidecars]
        return document


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The content of the file: `size` counts actions, `parts` files if there are several."""

    version: int
    size: int
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None
    v2: V2Hint | None = None

    def to_json(self) -> bytes:
        """The content of the file."""
        document: dict[str, Any] = {"version": self.version, "size": self.size}
        if self.parts is not None:
            document["parts"] = self.parts
        if self.size_in_bytes is not None:
            document["sizeInBytes"] = self.size_in_bytes
        if self.num_of_add_files is not None:
            document["numOfAddFiles"] = self.num_of_add_files
        if self.v2 is not None:
            document["v2Checkpoint"] = self.v2.to_dict()
        document[_CHECKSUM] = checksum_of(document)
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def parse_hint(data: bytes) -> LastCheckpoint | None:
    """Version, size and parts of a hint; None where it is damaged or its checksum is not right."""
    try:
        document = loads(data)
    except DeltaLakeDbError:
        return None
    if not isinstance(document, dict):
        return None
    version, size, parts = (document.get(name) for name in ("version", "size", "parts"))
    if type(version) is not int or type(size) is not int or version < 0:
        return None
    checksum = document.get(_CHECKSUM)
    if checksum is not None and checksum != checksum_of(document):
        return None
    return LastCheckpoint(version, size, parts if type(parts) is int else None)


def checksum_of(document: Mapping[str, Any]) -> str:
    """The checksum of a hint, whose own field `checksum` does not count."""
    entries = {key: value for key, value in document.items() if key != _CHECKSUM}
    lines = sorted(_flattened(entries, ""), key=lambda line: line[0].encode())
    text = ",".join(f"{path}={value}" for path, value in lines)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _flattened(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flattened(item, _step(path, _quoted(key)))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _flattened(item, _step(path, str(position)))
    elif isinstance(value, str):
        yield path, _quoted(value)
    elif value is None or isinstance(value, bool):
        yield path, {None: "null", True: "true", False: "false"}[value]
    else:
        yield path, str(value)


def _step(path: str, step: str) -> str:
    return f"{path}+{step}" if path else step


def _quoted(text: str) -> str:
    return f'"{quote(text, safe="-._~")}"'
