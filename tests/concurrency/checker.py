"""Proof from the database alone, held against the journals: nothing lost, doubled or reordered.

`check` reads every row of the catalog, replays it in Python and compares it with what the writers
were told. It trusts neither `dl_active_files` nor the counts: both are recomputed. Each rule that
is broken becomes a sentence in `Report.problems`.
"""

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from concurrency.isolation import Change, History, check_isolation
from concurrency.journal import Outcome, Part, Story, Try, read_journals
from deltalakedb.actions import Action, AddFile, CommitInfo, RemoveFile, Txn, serialise_commit
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.store import Counts, Store, TableRecord, VersionRecord
from deltalakedb.store.dialect import Row, Session
from deltalakedb.store.relations import (
    ACTION_RELATIONS,
    ACTIVE_FILES,
    HEADS,
    LIVE,
    MIRROR_STATUS,
    VERSIONS,
    Relation,
)
from deltalakedb.store.rows import from_row

KEY_PARAMETER = "try"
KEY_PROPERTY = "test.try"
_SAMPLE = 40
_FileKey = tuple[str, str]
_Interval = tuple[str, str, int, int, int]


@dataclass(slots=True)
class Ledger:
    """Everything the catalog holds about one table."""

    record: TableRecord
    heads: list[int] = field(default_factory=list)
    versions: list[VersionRecord] = field(default_factory=list)
    actions: dict[int, list[Action]] = field(default_factory=lambda: defaultdict(list))
    active: list[_Interval] = field(default_factory=list)
    mirror: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.record.name

    def actions_of(self, version: VersionRecord) -> list[Action]:
        """The actions of a version, its commitInfo included."""
        info = [version.commit_info] if version.commit_info else []
        return [*info, *self.actions.get(version.version, [])]


@dataclass(slots=True)
class Report:
    """What the checker found, and how much there was to look at."""

    problems: list[str]
    versions: int = 0
    transactions: int = 0
    """Commits over more than one table."""
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """By operation and error."""
    in_flight_there: int = 0
    """Commits whose writer never heard of their success."""
    resolved: int = 0
    """Commits whose answer was lost, and that their writers found in the ledger."""
    reads: int = 0
    looks: int = 0
    """What transactions saw of several tables."""

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {n}" for name, n in sorted(self.outcomes.items()))
        return (
            f"{self.versions} versions, {self.transactions} of many tables; {counts}; "
            f"{self.in_flight_there} there without acknowledgement, "
            f"{self.resolved} resolved by UUID; {self.reads} reads, {self.looks} looks"
        )


def check(url: str, journals: Iterable[Path]) -> Report:
    """Replay the catalog of `url` and compare it with what its writers journalled."""
    stories = read_journals(journals)
    with closing(Store.open(url)) as store:
        wait_until_alone(store)
        with store.read() as session:
            ledgers, problems = _load(store, session)
        for ledger in ledgers:
            problems += _check_versions(ledger)
            problems += _check_replay(ledger)
            problems += _check_mirror(ledger)
            problems += _check_app_txns(ledger)
            problems += _check_through_store(store, ledger)
        problems += _check_transactions(ledgers)
        problems += _check_journals(ledgers, stories)
        looks = [look for story in stories for look in story.looks]
        problems += check_isolation([_history(ledger) for ledger in ledgers], looks)
        problems += _check_engine(store)
        problems += _check_snapshots(Lake(store), ledgers)
    return _report(problems, ledgers, stories)


# --- reading ------------------------------------------------------------------------------


def wait_until_alone(store: Store, *, seconds: float = 60) -> None:
    """Wait for the server to notice that its other clients are gone: their COMMIT may be there.

    The other engines work inside their client, and die with it.
    """
    if store.dialect.engine != "postgres":
        return
    deadline = time.monotonic() + seconds
    others = (
        "SELECT pid, state, query FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    while True:
        with store.read() as session:
            left = session.execute(others, {})
        if not left:
            return
        assert time.monotonic() < deadline, f"sessions were left behind: {left}"
        time.sleep(0.01)


def _load(store: Store, session: Session) -> tuple[list[Ledger], list[str]]:
    ledgers = {record.table_id: Ledger(record) for record in store.tables(session)}
    problems: list[str] = []

    def rows(relation: Relation) -> Iterator[tuple[Ledger, Row]]:
        query = f"SELECT {', '.join(relation.columns)} FROM {relation.name}"
        for row in session.execute(query, {}):
            if row[0] in ledgers:
                yield ledgers[row[0]], row
            else:
                problems.append(f"{relation.name} has rows of an unregistered table: {row[0]}")

    for ledger, row in rows(HEADS):
        ledger.heads.append(row[1])
    for ledger, row in rows(VERSIONS):
        ledger.versions.append(VersionRecord.from_row(row, session))
    for relation in ACTION_RELATIONS:
        for ledger, row in rows(relation):
            ledger.actions[row[1]].append(from_row(relation, row, session))
    decode = session.decode_text
    for ledger, row in rows(ACTIVE_FILES):
        ledger.active.append((decode(row[1]), decode(row[2]), row[3], row[4], row[5]))
    for ledger, row in rows(MIRROR_STATUS):
        ledger.mirror.append(row)
    for ledger in ledgers.values():
        ledger.versions.sort(key=lambda version: version.version)
    return list(ledgers.values()), problems


# --- one table ----------------------------------------------------------------------------


def _check_versions(ledger: Ledger) -> Iterator[str]:
    name = ledger.name
    numbers = [version.version for version in ledger.versions]
    if numbers != list(range(len(numbers))) or not numbers:
        yield f"{name}: versions are not dense: {_gaps(numbers)}"
    if ledger.heads != [max(numbers, default=-1)]:
        yield f"{name}: head {ledger.heads} is not the newest of {len(numbers)} versions"
    if stray := sorted(ledger.actions.keys() - set(numbers)):
        yield f"{name}: actions without a version: {stray}"
    for before, after in zip(ledger.versions, ledger.versions[1:], strict=False):
        if after.committed_at <= before.committed_at:
            yield (
                f"{name}: version {after.version} was committed at {after.committed_at}, "
                f"not after {before.committed_at}"
            )
    uuids = Counter(version.commit_uuid for version in ledger.versions)
    for commit_uuid, count in uuids.items():
        if count > 1 or commit_uuid is None:
            yield f"{name}: commit {commit_uuid} has {count} versions"
    for version in ledger.versions:
        info = version.commit_info or CommitInfo()
        if info.fields.get("inCommitTimestamp") != version.committed_at:
            yield f"{name}: version {version.version} has another in-commit timestamp"
        if info.fields.get("txnId") != version.commit_uuid:
            yield f"{name}: version {version.version} has another txnId than commit UUID"


def _gaps(numbers: Sequence[int]) -> str:
    doubled = [number for number, count in Counter(numbers).items() if count > 1]
    missing = sorted(set(range(max(numbers, default=0) + 1)) - set(numbers))
    return f"missing {missing}, doubled {doubled}"


def _check_replay(ledger: Ledger) -> Iterator[str]:
    """Files and counts of every version, recomputed."""
    name = ledger.name
    live: dict[_FileKey, tuple[int, int]] = {}
    intervals: list[_Interval] = []
    for version in ledger.versions:
        number = version.version
        actions = ledger.actions_of(version)
        removes = [action for action in actions if isinstance(action, RemoveFile)]
        adds = [action for action in actions if isinstance(action, AddFile)]
        for remove in removes:
            found = live.pop((remove.path, remove.dv_id), None)
            if found is None:
                yield f"{name}: version {number} removes {remove.path}, which is not live"
            else:
                intervals.append((remove.path, remove.dv_id, found[0], number, found[1]))
        for add in adds:
            # Nothing in these tests refreshes a live file: it would be a commit done twice.
            if (add.path, add.dv_id) in live:
                yield f"{name}: version {number} adds {add.path}, which is live"
            live[add.path, add.dv_id] = (number, add.size)
        expected = Counts(
            num_actions=len(actions),
            num_adds=len(adds),
            num_removes=len(removes),
            bytes_added=sum(add.size for add in adds),
            bytes_removed=sum(remove.size or 0 for remove in removes),
            live_files=len(live),
            live_bytes=sum(size for _, size in live.values()),
        )
        if version.counts != expected:
            yield f"{name}: version {number} counts {version.counts}, and should {expected}"
    intervals += [(path, dv_id, added, LIVE, size) for (path, dv_id), (added, size) in live.items()]
    kept, replayed = Counter(ledger.active), Counter(intervals)
    for interval in (kept - replayed).keys() | (replayed - kept).keys():
        yield (
            f"{name}: dl_active_files has {kept[interval]} of {interval}, "
            f"the replay {replayed[interval]}"
        )


def _check_mirror(ledger: Ledger) -> Iterator[str]:
    name = ledger.name
    numbers = [version.version for version in ledger.versions]
    queued = {row[1]: dict(zip(MIRROR_STATUS.columns, row, strict=True)) for row in ledger.mirror}
    if sorted(row[1] for row in ledger.mirror) != numbers:
        yield f"{name}: the mirror queue does not have one row for each version"
    for version in ledger.versions:
        row = queued.get(version.version)
        if row is None:
            continue
        payload = bytes(row["payload"])
        where = f"{name}: the mirror row of version {version.version}"
        if row["status"] != "PENDING" or row["attempts"] != 0:
            yield f"{where} is {row['status']} after {row['attempts']} attempts"
        if hashlib.sha256(payload).hexdigest() != row["digest"]:
            yield f"{where} has another digest than its payload"
        if row["payload_bytes"] != len(payload):
            yield f"{where} says {row['payload_bytes']} bytes of {len(payload)}"
        if serialise_commit(ledger.actions_of(version)) != payload:
            yield f"{where} has another payload than the actions of the version"


def _check_app_txns(ledger: Ledger) -> Iterator[str]:
    newest: dict[str, int] = {}
    for version in ledger.versions:
        for action in ledger.actions.get(version.version, []):
            if not isinstance(action, Txn):
                continue
            if action.version <= newest.get(action.app_id, -1):
                yield (
                    f"{ledger.name}: version {version.version} records "
                    f"({action.app_id}, {action.version}) after "
                    f"({action.app_id}, {newest[action.app_id]})"
                )
            newest[action.app_id] = action.version


def _check_through_store(store: Store, ledger: Ledger) -> Iterator[str]:
    """What the store says of the same rows: of all files, and of a sample of versions."""
    name, table_id = ledger.name, ledger.record.table_id
    step = max(1, len(ledger.versions) // _SAMPLE)
    with store.read() as session:
        for problem in store.check_active_files(session, table_id):
            yield f"{name}: dl_active_files differs from the ledger: {problem}"
        for version in ledger.versions[::step]:
            found = store.actions_of(session, table_id, version.version)
            if serialise_commit(found) != serialise_commit(ledger.actions_of(version)):
                yield f"{name}: actions_of({version.version}) differs from the rows"
        if ledger.versions:
            metadata = store.metadata_at(session, table_id, ledger.versions[-1].version)
            if metadata is None or metadata.configuration != ledger.record.properties:
                yield f"{name}: the registry has other properties than the newest metadata"


def _check_snapshots(lake: Lake, ledgers: Sequence[Ledger]) -> Iterator[str]:
    """Time travel, by the way that users go."""
    for ledger in ledgers:
        step = max(1, len(ledger.versions) // 8)
        table = lake.table(ledger.name)
        for number in {*range(0, len(ledger.versions), step), len(ledger.versions) - 1} - {-1}:
            expected = {
                path for path, _, added, removed, _ in ledger.active if added <= number < removed
            }
            try:
                found = table.snapshot(version=number).files()["path"].to_pylist()
            except DeltaLakeDbError as error:
                yield f"{ledger.name}: there is no snapshot of version {number}: {error}"
                continue
            if len(found) != len(expected) or set(found) != expected:
                yield f"{ledger.name}: the snapshot of version {number} has other files"


def _check_engine(store: Store) -> Iterator[str]:
    """The database itself is sound, and nobody holds on to anything."""
    with store.read() as session:
        if store.dialect.engine == "sqlite":
            answer = session.execute("PRAGMA integrity_check", {})
            if answer != [("ok",)]:
                yield f"SQLite says {answer}"
        elif store.dialect.engine == "postgres":
            # Locks need no look: they went with their sessions, and there is none left.
            prepared = session.execute("SELECT gid FROM pg_prepared_xacts", {})
            if prepared:
                yield f"transactions were left prepared: {prepared}"
    with store.write():
        pass  # the writer's lock is free


# --- against the journals -----------------------------------------------------------------


def key_of(version: VersionRecord, name: str) -> str | None:
    """The key of the try that a version came from."""
    info = version.commit_info
    if info is None:
        return None
    parameters = info.operation_parameters or {}
    if info.operation == "CREATE TABLE":
        return f"create {name}"
    if info.operation == "SET TBLPROPERTIES":
        key = json.loads(str(parameters["properties"])).get(KEY_PROPERTY)
    else:
        key = parameters.get(KEY_PARAMETER)
    return None if key is None else str(key)


def _check_transactions(ledgers: Sequence[Ledger]) -> Iterator[str]:
    """Every participant of a transaction belongs to the same try."""
    keys: defaultdict[str, set[str | None]] = defaultdict(set)
    for ledger in ledgers:
        seen: set[str] = set()
        for version in ledger.versions:
            transaction_id = version.transaction_id
            if transaction_id is None:
                continue
            if transaction_id in seen:
                yield f"{ledger.name}: transaction {transaction_id} has two versions"
            seen.add(transaction_id)
            keys[transaction_id].add(key_of(version, ledger.name))
    for transaction_id, found in keys.items():
        if len(found) > 1:
            yield f"transaction {transaction_id} mixes {found}"


_Place = tuple[Ledger, VersionRecord]


def _check_journals(ledgers: Sequence[Ledger], stories: Sequence[Story]) -> Iterator[str]:
    places: defaultdict[str | None, list[_Place]] = defaultdict(list)
    for ledger in ledgers:
        for version in ledger.versions:
            places[key_of(version, ledger.name)].append((ledger, version))
    known: set[str] = set()
    for story in stories:
        for text in story.violations:
            yield f"{story.path.name}: {text}"
        for position, one in enumerate(story.tries, 1):
            if one.key in known:
                yield f"{story.path.name}: two tries have the key {one.key}"
            known.add(one.key)
            last = position == len(story.tries)
            if one.outcome is Outcome.IN_FLIGHT and (story.ended or not last):
                yield f"{story.path.name}: {one.key} was never heard of, and its writer lived on"
            yield from _check_try(one, places.get(one.key, []), ledgers)
    for key, found in places.items():
        if key not in known:
            where = [f"{ledger.name} {version.version}" for ledger, version in found]
            yield f"nobody tried the commit {key}: {where}"


def _check_try(one: Try, places: Sequence[_Place], ledgers: Sequence[Ledger]) -> Iterator[str]:
    tables = Counter(ledger.name for ledger, _ in places)
    if one.outcome is Outcome.ALREADY:
        if places:
            yield f"{one.key} was told to be done before, and wrote {dict(tables)}"
        yield from _check_already(one, ledgers)
        return
    if one.outcome is Outcome.REFUSED:
        if places:
            yield f"{one.key} was refused ({one.error}), and wrote {dict(tables)}"
        return
    if not places and one.outcome is not Outcome.ACKNOWLEDGED:
        return
    if tables != Counter(one.parts.keys()):
        yield f"{one.key} ({one.outcome.value}) wrote {dict(tables)} and not {sorted(one.parts)}"
    transactions = {version.transaction_id for _, version in places}
    if len(transactions) > 1 or (None in transactions) != (len(one.parts) == 1):
        yield f"{one.key} over {len(one.parts)} tables has the transaction ids {transactions}"
    for ledger, version in places:
        yield from _check_place(one, ledger, version)


def _history(ledger: Ledger) -> History:
    """What the commits did to a table, in the order of its versions."""
    changes = []
    for version in ledger.versions:
        actions = ledger.actions.get(version.version, [])
        adds = frozenset(action.path for action in actions if isinstance(action, AddFile))
        removes = frozenset(action.path for action in actions if isinstance(action, RemoveFile))
        key = key_of(version, ledger.name) or f"{ledger.name} {version.version}"
        changes.append(Change(key, adds, removes))
    level = ledger.record.properties.get("delta.isolationLevel", "Serializable")
    return History(ledger.name, changes, level)


def _check_place(one: Try, ledger: Ledger, version: VersionRecord) -> Iterator[str]:
    where = f"{one.key} in {ledger.name} at version {version.version}"
    actions = ledger.actions.get(version.version, [])
    part = one.parts.get(ledger.name, Part())
    if sorted(a.path for a in actions if isinstance(a, AddFile)) != sorted(part.adds):
        yield f"{where} adds other files than it tried to"
    if sorted(a.path for a in actions if isinstance(a, RemoveFile)) != sorted(part.removes):
        yield f"{where} removes other files than it tried to"
    if one.outcome is Outcome.ACKNOWLEDGED:
        if one.versions.get(ledger.name) != version.version:
            yield f"{where} was acknowledged at version {one.versions.get(ledger.name)}"
        if one.commit_uuids.get(ledger.name) != version.commit_uuid:
            yield f"{where} was acknowledged with another commit UUID"


def _check_already(one: Try, ledgers: Sequence[Ledger]) -> Iterator[str]:
    if one.app_txn is None:
        yield f"{one.key} has no app transaction, and was told to be done before"
        return
    app_id, wanted = one.app_txn
    for ledger in ledgers:
        if ledger.name not in one.parts:
            continue
        recorded = [
            action.version
            for action in ledger.actions.get(one.versions[ledger.name], [])
            if isinstance(action, Txn) and action.app_id == app_id
        ]
        if not recorded or recorded[0] < wanted:
            yield (
                f"{one.key} was told that {one.app_txn} is in version "
                f"{one.versions[ledger.name]} of {ledger.name}, where {recorded} is"
            )


def _report(problems: list[str], ledgers: Sequence[Ledger], stories: Sequence[Story]) -> Report:
    report = Report(problems, versions=sum(len(ledger.versions) for ledger in ledgers))
    transactions = {v.transaction_id for ledger in ledgers for v in ledger.versions} - {None}
    report.transactions = len(transactions)
    there = {key_of(v, ledger.name) for ledger in ledgers for v in ledger.versions}
    for story in stories:
        report.reads += story.reads
        report.looks += len(story.looks)
        for one in story.tries:
            report.outcomes[one.outcome.value] += 1
            report.resolved += one.resolved
            if one.outcome is Outcome.REFUSED:
                report.refusals[f"{one.operation}: {one.error}"] += 1
            elif one.outcome is not Outcome.ACKNOWLEDGED and one.key in there:
                report.in_flight_there += 1
    return report
