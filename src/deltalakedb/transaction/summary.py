"""The actions of a commit by kind, sorted once: everything after that asks here.

A commit is looked at by the rules, by the conflict checks, by the accounting and by its own
commitInfo. Each going through all actions again was a good part of what a small commit cost.
"""

from __future__ import annotations

from collections.abc import Iterable

from deltalakedb.actions.values import (
    Action,
    AddFile,
    CdcFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)


class Summary:
    """The actions by kind, in the order they came. Nobody changes it once it is made.

    Where an action that may be there once came again, the later one counts, and `repeated` has it.
    `others` are kinds that belong into no commit of ours.
    """

    __slots__ = (
        "adds",
        "app_ids",
        "cdc_files",
        "commit_info",
        "domains",
        "metadata",
        "others",
        "protocol",
        "removes",
        "repeated",
    )

    def __init__(self, actions: Iterable[Action]) -> None:
        self.adds: list[AddFile] = []
        self.removes: list[RemoveFile] = []
        self.cdc_files: list[CdcFile] = []
        self.domains: dict[str, DomainMetadata] = {}
        self.app_ids: set[str] = set()
        self.metadata: Metadata | None = None
        self.protocol: Protocol | None = None
        self.commit_info: CommitInfo | None = None
        self.others: list[Action] = []
        self.repeated: Action | None = None
        for action in actions:
            kind = type(action)
            if kind is AddFile:
                self.adds.append(action)  # type: ignore[arg-type]
            elif kind is RemoveFile:
                self.removes.append(action)  # type: ignore[arg-type]
            elif kind is CdcFile:
                self.cdc_files.append(action)  # type: ignore[arg-type]
            else:
                self._sort_control(action)

    def _sort_control(self, action: Action) -> None:
        again: object = None
        if isinstance(action, Metadata):
            again, self.metadata = self.metadata, action
        elif isinstance(action, Protocol):
            again, self.protocol = self.protocol, action
        elif isinstance(action, CommitInfo):
            again, self.commit_info = self.commit_info, action
        elif isinstance(action, Txn):
            again = action if action.app_id in self.app_ids else None
            self.app_ids.add(action.app_id)
        elif isinstance(action, DomainMetadata):
            again = self.domains.get(action.domain)
            self.domains[action.domain] = action
        else:
            self.others.append(action)
        if again is not None and self.repeated is None:
            self.repeated = action

    @property
    def data_change(self) -> bool:
        """Whether any file action changes the data."""
        return any(f.data_change for f in self.adds) or any(f.data_change for f in self.removes)

    @property
    def removed_paths(self) -> frozenset[str]:
        """The paths removed, whatever their deletion vectors."""
        removes = self.removes
        return frozenset([remove.path for remove in removes]) if removes else _NO_PATHS


_NO_PATHS: frozenset[str] = frozenset()
