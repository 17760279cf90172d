"""Proof that transactions over several tables were isolated: from what they saw, and the ledger.

Commits and looks are the nodes of a graph, and an edge says which of two must have been first:

- each version of a table comes after the one before it;
- a look comes after the newest version that it saw of each table, and before the next one;
- a commit comes after the look that it depends on, and before any commit that has changed what it
  saw there. In a WriteSerializable table, files that a blind append adds are no such change.

A cycle means that no order explains what was seen. Without an edge of the last kind a look was not
of one instant (a fractured read); with one, transactions depend on each other's past (write skew).
The function is pure, and trusts nothing that the catalog says of blind appends.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from concurrency.journal import Look, Sight

WRITE_SERIALIZABLE = "WriteSerializable"
_MOST = 5


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit did to one table."""

    key: str
    adds: frozenset[str] = frozenset()
    removes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class History:
    """All versions of a table, from version 0 on."""

    name: str
    changes: Sequence[Change]
    level: str = "Serializable"


class _Kind(Enum):
    FOLLOWS = "then came"
    SEEN = "was seen by"
    UNSEEN = "did not see"
    USED = "was used by"
    NEEDED = "needed that there is no"


@dataclass(frozen=True, slots=True)
class _Edge:
    source: str
    kind: _Kind
    target: str
    at: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.kind.value} {self.target}{self.at and f' ({self.at})'}"


@dataclass(slots=True)
class _Graph:
    edges: dict[str, list[_Edge]] = field(default_factory=dict)

    def add(self, edge: _Edge) -> None:
        if edge.source != edge.target:
            self.edges.setdefault(edge.source, []).append(edge)
            self.edges.setdefault(edge.target, [])

    def cyclic(self) -> set[str]:
        """Every node of a cycle, and those that come after one."""
        waiting = dict.fromkeys(self.edges, 0)
        for edges in self.edges.values():
            for edge in edges:
                waiting[edge.target] += 1
        free = deque(node for node, count in waiting.items() if not count)
        while free:
            for edge in self.edges[free.popleft()]:
                waiting[edge.target] -= 1
                if not waiting[edge.target]:
                    free.append(edge.target)
        return {node for node, count in waiting.items() if count}

    def cycle(self, first: _Edge) -> list[_Edge] | None:
        """The shortest cycle that begins with an edge."""
        came: dict[str, _Edge] = {first.target: first}
        waiting = deque([first.target])
        while waiting:
            node = waiting.popleft()
            if node == first.source:
                found = [came[node]]
                while found[-1] is not first:
                    found.append(came[found[-1].source])
                return found[::-1]
            for edge in self.edges[node]:
                if edge.target not in came:
                    came[edge.target] = edge
                    waiting.append(edge.target)
        return None


def check_isolation(histories: Sequence[History], looks: Sequence[Look]) -> Iterator[str]:
    """What is wrong with what was seen; a sentence for each."""
    by_name = {history.name: history for history in histories}
    for history in histories:
        yield from _check_sights(history, looks)
    graph = _graph(by_name, [look for look in looks if _is_there(by_name, look)])
    cyclic = graph.cyclic()
    told: set[frozenset[str]] = set()
    for kind in (_Kind.UNSEEN, _Kind.NEEDED):
        for node in sorted(cyclic):
            for edge in graph.edges[node]:
                found = graph.cycle(edge) if edge.kind is kind and len(told) < _MOST else None
                if found is None or frozenset(one.source for one in found) in told:
                    continue
                told.add(frozenset(one.source for one in found))
                skewed = any(one.kind is _Kind.NEEDED for one in found)
                name = "write skew" if skewed else "a look that is not of one instant"
                yield f"{name}: {', '.join(map(str, found))}"
    if cyclic and not told:
        yield f"versions that cannot have followed one another: {sorted(cyclic)}"


def partition_of(path: str) -> str:
    """The partition that a file is in, by its path."""
    folder = path.split("/", maxsplit=1)[0]
    return folder.removeprefix("p=")


def _is_there(histories: Mapping[str, History], look: Look) -> bool:
    return all(
        name in histories and 0 <= sight.version < len(histories[name].changes)
        for name, sight in look.sights.items()
    )


def _check_sights(history: History, looks: Sequence[Look]) -> Iterator[str]:
    """Each look saw exactly the files of the version that it was given."""
    live: set[str] = set()
    states: list[frozenset[str]] = []
    for change in history.changes:
        live = (live - change.removes) | change.adds
        states.append(frozenset(live))
    for look in looks:
        sight = look.sights.get(history.name)
        if sight is None:
            continue
        where = f"{look.key} saw version {sight.version} of {history.name}"
        if not 0 <= sight.version < len(states):
            yield f"{where}, which is not there"
            continue
        there = states[sight.version]
        if sight.partition is not None:
            there = frozenset(path for path in there if partition_of(path) == sight.partition)
        if sight.paths != there:
            yield f"{where} with other files: {sorted(sight.paths ^ there)}"


def _graph(histories: Mapping[str, History], looks: Sequence[Look]) -> _Graph:
    graph = _Graph()
    committed = {change.key for history in histories.values() for change in history.changes}
    blind = committed - {look.key for look in looks}
    blind -= {c.key for history in histories.values() for c in history.changes if c.removes}
    for history in histories.values():
        pairs = zip(history.changes, history.changes[1:], strict=False)
        for version, (before, after) in enumerate(pairs, 1):
            at = f"{history.name} {version}"
            graph.add(_Edge(before.key, _Kind.FOLLOWS, after.key, at))
    for number, look in enumerate(looks):
        node = f"look {number} of {look.key}"
        if look.key in committed:
            graph.add(_Edge(node, _Kind.USED, look.key))
        for name, sight in look.sights.items():
            history = histories[name]
            seen = history.changes[sight.version]
            graph.add(_Edge(seen.key, _Kind.SEEN, node, f"{name} {sight.version}"))
            later = range(sight.version + 1, len(history.changes))
            if later:
                unseen = history.changes[later[0]]
                graph.add(_Edge(node, _Kind.UNSEEN, unseen.key, f"{name} {later[0]}"))
            if look.key not in committed:
                continue
            for version in later:
                change = history.changes[version]
                if _changes(sight, change, ignore_adds=_ignored(history, change.key, blind)):
                    at = f"{name} {version} after {sight.version}"
                    graph.add(_Edge(look.key, _Kind.NEEDED, change.key, at))
                    break
    return graph


def _ignored(history: History, key: str, blind: set[str]) -> bool:
    return history.level == WRITE_SERIALIZABLE and key in blind


def _changes(sight: Sight, change: Change, *, ignore_adds: bool) -> bool:
    """Whether a commit changes what was seen."""
    if sight.partition is None:
        return bool(change.removes or (change.adds and not ignore_adds))
    if change.removes & sight.paths:
        return True
    return not ignore_adds and any(partition_of(path) == sight.partition for path in change.adds)
