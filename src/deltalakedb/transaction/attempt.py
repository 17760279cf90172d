"""The input of the conflict rules: reads and actions of a transaction, and a winning commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

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
from deltalakedb.conditions.partition_tests import PartitionTest
from deltalakedb.errors import ConfigurationError
from deltalakedb.transaction.metadata_diff import ROW_TRACKING_DOMAIN


class Summary:
    """The actions of a commit by kind, in their order. It never changes.

    - `repeated` is the first action of a kind that a commit may have once; the last one counts.
    - `others` are actions that no commit of this release contains.
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


class IsolationLevel(Enum):
    """How strictly a transaction is isolated from concurrent commits."""

    SERIALIZABLE = "Serializable"
    """As if all commits had run one after the other, in the order of their versions."""
    WRITE_SERIALIZABLE = "WriteSerializable"
    """As if they had run in one order or another: blind appends of others are no conflict."""
    SNAPSHOT = "SnapshotIsolation"
    """Added files are no conflict; for commits that change no data, such as compaction."""


_LEVELS: Final = {
    level.value.lower(): level
    for level in (IsolationLevel.SERIALIZABLE, IsolationLevel.WRITE_SERIALIZABLE)
}


def isolation_of(metadata: Metadata) -> IsolationLevel:
    """The level of `delta.isolationLevel`; Serializable if it is not set."""
    text = metadata.configuration.get("delta.isolationLevel")
    if text is None:
        return IsolationLevel.SERIALIZABLE
    level = _LEVELS.get(text.strip().lower())
    if level is None:
        raise ConfigurationError(
            f"The table property 'delta.isolationLevel' has the value {text!r}",
            why="a table can only ask for Serializable or WriteSerializable",
            fix="Set it to one of these, or unset it",
        )
    return level


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The reads of a transaction; `ReadSet()` is that of a blind write.

    `partitions` is asked with the raw `partitionValues` of a file (physical names, values as the
    log writes them) whether such a file could have been read. For a table without partitions it
    is asked with an empty mapping: a read with any predicate answers True. `files` are the paths
    read, exactly as the log spells them; a file that is re-added or removed belongs here too.
    """

    whole_table: bool = False
    partitions: PartitionTest | None = None
    files: frozenset[str] = frozenset()
    app_ids: frozenset[str] = frozenset()

    @property
    def reads_files(self) -> bool:
        """Whether any file, or the absence of one, was read."""
        return self.whole_table or self.partitions is not None or bool(self.files)


NOTHING: Final = ReadSet()
"""The read set of a blind write."""


def merge_read_sets(*reads: ReadSet) -> ReadSet:
    """The read set of a transaction with all of these reads."""
    if len(reads) < 2:
        return reads[0] if reads else NOTHING
    tests = [read.partitions for read in reads if read.partitions is not None]
    return ReadSet(
        whole_table=any(read.whole_table for read in reads),
        partitions=_any_of(tests) if len(tests) > 1 else next(iter(tests), None),
        files=frozenset().union(*(read.files for read in reads)),
        app_ids=frozenset().union(*(read.app_ids for read in reads)),
    )


def _any_of(tests: Sequence[PartitionTest]) -> PartitionTest:
    def matches(values: Mapping[str, str | None]) -> bool:
        return any(test(values) for test in tests)

    return matches


class Attempt:
    """The reads and actions of a transaction, and the isolation level of the table."""

    __slots__ = ("_summary", "isolation", "read_set")

    def __init__(
        self,
        read_set: ReadSet,
        actions: Iterable[Action] | Summary,
        isolation: IsolationLevel = IsolationLevel.SERIALIZABLE,
    ) -> None:
        self.read_set = read_set
        self.isolation = isolation
        self._summary = actions if isinstance(actions, Summary) else Summary(actions)

    @property
    def changes_metadata(self) -> bool:
        """Whether the commit contains a `metaData` action."""
        return self._summary.metadata is not None

    @property
    def changes_protocol(self) -> bool:
        """Whether the commit contains a `protocol` action."""
        return self._summary.protocol is not None

    @property
    def adds(self) -> Sequence[AddFile]:
        """The files added."""
        return self._summary.adds

    @property
    def removed_paths(self) -> frozenset[str]:
        """The paths removed, whatever their deletion vectors."""
        return self._summary.removed_paths

    @property
    def domains(self) -> frozenset[str]:
        """The metadata domains written."""
        return frozenset(self._summary.domains)

    @property
    def app_ids(self) -> frozenset[str]:
        """The app transactions relied on: those read, and those written, which implies it."""
        return self.read_set.app_ids | self._summary.app_ids

    @property
    def data_change(self) -> bool:
        """Whether any file action changes the data."""
        return self._summary.data_change

    @property
    def is_blind_append(self) -> bool:
        """Whether the commit adds files without reading any, and does nothing else.

        App transactions and domains may go with it. A refresh of a live file is no append: its
        path belongs into `ReadSet.files` (see `rules.refreshed_paths`).
        """
        summary = self._summary
        return (
            bool(summary.adds)
            and not summary.removes
            and not summary.cdc_files
            and summary.metadata is None
            and summary.protocol is None
            and not summary.others
            and not self.read_set.reads_files
        )

    @property
    def effective_isolation(self) -> IsolationLevel:
        """The level to check with: rewriting files without changing data needs only snapshots."""
        summary = self._summary
        if (
            summary.data_change
            or not (summary.adds or summary.removes)
            or summary.metadata is not None
            or summary.protocol is not None
            or summary.app_ids
            or summary.others
            or not summary.domains.keys() <= {ROW_TRACKING_DOMAIN}
        ):
            return self.isolation
        return IsolationLevel.SNAPSHOT


@dataclass(frozen=True, slots=True)
class Winner:
    """A concurrent commit: it has a version after the base of our transaction."""

    version: int
    actions: Sequence[Action]
    table: str = ""
    """The name of its table, for messages."""
    _summary: Summary = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_summary", Summary(self.actions))

    @property
    def metadata(self) -> Metadata | None:
        """The metadata it set, if it did."""
        return self._summary.metadata

    @property
    def protocol(self) -> Protocol | None:
        """The protocol it set, if it did."""
        return self._summary.protocol

    @property
    def domains(self) -> frozenset[str]:
        """The metadata domains it wrote."""
        return frozenset(self._summary.domains)

    @property
    def app_ids(self) -> frozenset[str]:
        """The app transactions it wrote."""
        return frozenset(self._summary.app_ids)

    @property
    def adds(self) -> Sequence[AddFile]:
        """The files it added."""
        return self._summary.adds

    @property
    def removed_paths(self) -> frozenset[str]:
        """The paths it removed, whatever their deletion vectors."""
        return self._summary.removed_paths

    @property
    def is_blind_append(self) -> bool:
        """Whether its commitInfo has `isBlindAppend` true."""
        info = self._summary.commit_info
        return info is not None and info.is_blind_append is True

    @property
    def operation(self) -> str:
        """The name of its operation, for messages."""
        info = self._summary.commit_info
        return (info.operation if info is not None else None) or "an unnamed operation"
