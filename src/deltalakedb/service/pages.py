"""The pages for people, each made of what the JSON API answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from deltalakedb.advice import as_commands, command_line
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.formatting import duration, moment, size
from deltalakedb.service import resources
from deltalakedb.service.answers import (
    Changes,
    Histogram,
    Retried,
    Source,
    TableHead,
    TableMirror,
    Versions,
)
from deltalakedb.service.layout import (
    STYLE,
    advice,
    code,
    facts,
    field,
    more,
    page,
    rows,
    table_link,
    url,
    when,
)
from deltalakedb.service.markup import Child, Markup, element
from deltalakedb.service.parameters import Parameter, parse
from deltalakedb.service.plots import bars, line
from deltalakedb.service.resources import RESOURCES, Catalog

__all__ = ["PAGES", "STYLE", "failed", "retried"]

# What commits usually call themselves, ours and those of Delta on Spark and delta-rs.
OPERATIONS: Final = (
    *("WRITE", "MERGE", "UPDATE", "DELETE", "STREAMING UPDATE", "OPTIMIZE", "RESTORE"),
    *("CREATE TABLE", "CREATE TABLE AS SELECT", "CREATE OR REPLACE TABLE", "CLONE", "CONVERT"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD COLUMNS", "RENAME TABLE", "CLUSTER BY"),
    *("UPGRADE PROTOCOL", "DROP FEATURE", "VACUUM START", "VACUUM END"),
)
_UNITS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def overview(catalog: Catalog, _: Mapping[str, Any]) -> str:
    """The catalog in numbers, and what was changed last."""
    numbers = resources.summary(catalog, {})
    return page(
        "Overview",
        facts(
            [
                ("Tables", f"{numbers.tables:,}"),
                ("Versions", f"{numbers.versions:,}"),
                ("Live files", _with(f"{numbers.live_files:,}", size(numbers.live_bytes))),
                (
                    "To publish",
                    _with(f"{numbers.backlog:,}", f"in {numbers.tables_behind:,} tables"),
                ),
                ("Mirror lag", duration(numbers.lag_ms)),
                ("Drifted tables", f"{numbers.tables_drifted:,}"),
            ]
        ),
        element("div", _activity(catalog, None), class_="plots"),
        element("h2", "Changed last"),
        _changes(resources.changes(catalog, _NEWEST)),
        element("p", element("a", "Search all changes", href="/changes")),
        at="/",
    )


def _with(value: str, beside: str) -> Child:
    return [value, element("small", beside)]


def changes(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """Who changed what, in all tables."""
    found = resources.changes(catalog, asked)
    return page(
        "Changes",
        element("form", _search_fields(asked), element("button", "Search"), action="/changes"),
        _changes(found),
        more("/changes", found.next, **_searched(asked)),
        at="/changes",
    )


def _changes(found: Changes) -> Markup:
    return rows(
        ("time (UTC)@", "table", "version#", "committer~", "operation", "added#", "removed#"),
        [
            (
                when(one.committed_at),
                table_link(one.name),
                one.version,
                one.committer,
                _operation(one.operation, one.operation_parameters),
                f"{one.num_adds:,}",
                f"{one.num_removes:,}",
            )
            for one in found.changes
        ],
        _nothing_fits(found),
    )


def _nothing_fits(found: Changes | Versions) -> str:
    if found.next:
        return "No commit fits, among those that were looked at."
    return "No commit fits."


def _searched(asked: Mapping[str, Any]) -> dict[str, str | None]:
    """What was searched for, as the form and the next page have it."""
    search = {key: asked[key] for key in ("operation", "committer")}
    for key in ("since", "until"):
        search[key] = None if asked[key] is None else moment(asked[key])
    return search


def _search_fields(asked: Mapping[str, Any]) -> list[Markup]:
    search = _searched(asked)
    return [
        field(
            "Operation",
            "operation",
            search["operation"],
            hint="in any case",
            placeholder="WRITE",
            known=OPERATIONS,
        ),
        field(
            "Committer",
            "committer",
            search["committer"],
            hint="the whole name, in any case",
            placeholder="ann@example.org",
        ),
        field(
            "Since", "since", search["since"], hint="date or time, UTC", placeholder="2026-11-01"
        ),
        field(
            "Until",
            "until",
            search["until"],
            hint="time, or the beginning of a date, UTC",
            placeholder="2026-11-30T18:00",
        ),
    ]


def tables(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """Every table, by name."""
    found = resources.tables(catalog, asked)
    contains = asked["contains"]
    return page(
        "Tables",
        element(
            "form",
            field("Name contains", "contains", contains, hint="in any case"),
            element("button", "Search"),
            action="/tables",
        ),
        rows(
            ("table", "version#", "last commit (UTC)@", "committer~", "files#", "size#", "mirror"),
            [
                (
                    table_link(one.name),
                    one.version,
                    when(one.committed_at),
                    one.committer,
                    f"{one.live_files:,}",
                    size(one.live_bytes),
                    _state(one.mirror),
                )
                for one in found.tables
            ],
            "No table fits.",
        ),
        more("/tables", found.next, contains=contains, behind=asked["behind"]),
        at="/tables",
    )


def _state(mirror: TableMirror) -> Markup:
    return element("span", mirror.state, class_=f"state {mirror.state}")


def mirror(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """The tables whose `_delta_log` is behind, and why."""
    found = resources.tables(catalog, {**asked, "behind": True, "contains": None})
    how = (
        "The page of a table has the button that publishes it now."
        if catalog.changeable
        else "The page of a table says how to publish it now."
    )
    return page(
        "Mirror",
        element(
            "p",
            f"Tables whose _delta_log is behind the catalog, or has drifted from it. {how}",
        ),
        rows(
            ("table", "state", "head#", "published#", "waiting#", "lag#", "what is wrong…"),
            [
                (
                    table_link(one.name),
                    _state(one.mirror),
                    one.version,
                    one.mirror.published_version,
                    f"{one.mirror.backlog:,}",
                    duration(one.mirror.lag_ms),
                    advice(one.mirror.last_error or one.mirror.checkpoint_error),
                )
                for one in found.tables
            ],
            "Everything is published.",
        ),
        more("/mirror", found.next),
        at="/mirror",
    )


def table(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """One table: its history, its growth, its files, its mirror."""
    name = asked["name"]
    one = resources.table(catalog, asked)
    history = resources.versions(catalog, asked)
    return page(
        name,
        element("p", one.location, class_="quiet"),
        facts(
            [
                ("Version", _with(f"{one.version:,}", one.operation or "")),
                ("Last commit (UTC)", [when(one.committed_at), element("small", one.committer)]),
                (
                    "Live files",
                    [
                        f"{one.live_files:,}",
                        element("small", element("a", "Files", href=url("/files", name=name))),
                    ],
                ),
                ("Live bytes", size(one.live_bytes)),
            ]
        ),
        element("div", _activity(catalog, name), _growth(catalog, name), class_="plots"),
        element("h2", "Mirror"),
        _mirror_of(catalog, one),
        element("h2", "Who changed what"),
        element(
            "form",
            element("input", type="hidden", name="name", value=name),
            _search_fields(asked),
            element("button", "Search"),
            action="/table",
        ),
        rows(
            (
                *("version#", "time (UTC)@", "committer~", "operation", "added#", "removed#"),
                *("files#", "size#", "rebased over#"),
            ),
            [
                (
                    row.version,
                    when(row.committed_at),
                    row.committer,
                    _operation(row.operation, row.operation_parameters),
                    f"{row.num_adds:,}",
                    f"{row.num_removes:,}",
                    f"{row.live_files:,}",
                    size(row.live_bytes),
                    row.rebased_over or None,
                )
                for row in history.versions
            ],
            _nothing_fits(history),
        ),
        more("/table", history.next, name=name, **_searched(asked)),
        at="/tables",
    )


def _operation(operation: str | None, parameters: Mapping[str, Any] | None) -> Child:
    name = element("span", operation or "(unnamed)", class_="name")
    if not parameters:
        return name if operation else None
    text = json.dumps(parameters, ensure_ascii=False)
    shown = text if len(text) <= 500 else f"{text[:500]}…"
    return element("details", element("summary", name), element("pre", shown))


def _activity(catalog: Catalog, name: str | None) -> Markup | None:
    """When commits were made."""
    found = resources.activity(catalog, {"name": name})
    if not found.commits:
        return None
    length, unit = next(one for one in _UNITS if found.step_ms % one[0] == 0)
    count = found.step_ms // length
    title = f"Commits per {unit}" if count == 1 else f"Commits per {count:,} {unit}s"
    if name is None:
        title += f", the newest {found.counted:,} of all tables"
    starts = [found.since + place * found.step_ms for place in range(len(found.commits))]
    return bars(
        [(moment(at), count) for at, count in zip(starts, found.commits, strict=True)],
        title=title,
        ends=_ends(starts[0], starts[-1] + found.step_ms),
    )


def _growth(catalog: Catalog, name: str) -> Child:
    points = resources.growth(catalog, {"name": name}).points
    if len(points) < 2:
        return None
    ends = _ends(points[0].committed_at, points[-1].committed_at)
    return [
        line(
            [(point.committed_at, point.live_files) for point in points],
            title="Live files over time",
            ends=ends,
        ),
        line(
            [(point.committed_at, point.live_bytes) for point in points],
            title="Live bytes over time",
            ends=ends,
            shown=size,
        ),
    ]


def _ends(first: int, last: int) -> tuple[str, str]:
    """The times below a plot, as exact as they have to be."""
    length = 16 if last - first >= 600_000 else 19
    shown = [moment(at)[:length].replace("T", " ") for at in (first, last)]
    return shown[0], shown[1]


def _mirror_of(catalog: Catalog, one: TableHead) -> Child:
    found = one.mirror
    boxes: list[tuple[str, Child]] = [
        ("State", _state(found)),
        ("Published up to version", found.published_version),
        ("Waiting", _with(f"{found.backlog:,} versions", f"for {duration(found.lag_ms)}")),
        ("Checkpoint at version", found.checkpoint_version),
    ]
    if found.last_error:
        following = when(found.next_attempt_at) or "as soon as a worker looks"
        boxes.append(("Attempts", [str(found.attempts), element("small", "next: ", following)]))
    if found.lease_owner:
        boxes.append(("Tended by", found.lease_owner))
    parts: list[Child] = [facts(boxes)]
    for title, error in (
        ("What is wrong", found.last_error),
        ("What is wrong with the checkpoint", found.checkpoint_error),
    ):
        if error:
            parts += [element("h3", title), element("p", advice(error), class_="wrong")]
    if found.drift is not None:
        parts += [
            element("h3", "Drift report"),
            element("pre", json.dumps(found.drift, indent=2, ensure_ascii=False)),
            element(
                "p",
                code(command_line("verify", one.name)),
                " compares all of it; ",
                code(command_line("adopt", one.name)),
                " takes foreign commits over.",
            ),
        ]
    if found.state != "published":
        parts.append(_publish(catalog, one.name))
    return parts


def _publish(catalog: Catalog, name: str) -> Markup:
    """The button, where there is a token that lets it work."""
    if not catalog.changeable:
        return element(
            "p",
            "Read-only: start the server with DELTALAKEDB_TOKEN to publish from here, or run ",
            code(command_line("mirror retry", name)),
            class_="note",
        )
    return element(
        "form",
        element("input", type="hidden", name="name", value=name),
        field("Token", "token", None, kind="password", hint="of this server"),
        element("button", "Publish now"),
        method="post",
        action="/retry",
    )


def files(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """The live files of a table, and how large they are."""
    name = asked["name"]
    found = resources.files(catalog, asked)
    sizes = resources.sizes(catalog, asked)
    title = "Live files by size, each bar up to"
    if sizes.counted < sizes.live_files:
        title = (
            f"The newest {sizes.counted:,} of {sizes.live_files:,} live files by size, "
            "each bar up to"
        )
    labels = [_power(one.below) if one.below else "more" for one in sizes.sizes]
    counts = [one.files for one in sizes.sizes]
    return page(
        f"Files of {name}",
        element("p", element("a", "Back to the table", href=url("/table", name=name))),
        element("div", bars(list(zip(labels, counts, strict=True)), title=title), class_="plots"),
        rows(
            ("path…", "partition", "size#", "modified (UTC)@", "since version#"),
            [
                (
                    row.path,
                    json.dumps(row.partition_values, ensure_ascii=False)
                    if row.partition_values
                    else None,
                    size(row.size_bytes),
                    when(row.modification_time),
                    row.added_version,
                )
                for row in found.files
            ],
            "No live files, among those that were looked at." if found.next else "No live files.",
        ),
        more("/files", found.next, name=name),
        at="/tables",
    )


def _power(count: int) -> str:
    for unit in ("KiB", "MiB"):
        count //= 1024
        if count < 1024:
            return f"{count} {unit}"
    return f"{count // 1024} GiB"


def metrics(catalog: Catalog, _: Mapping[str, Any]) -> str:
    """Conflicts and latencies, of this process and of the others it knows."""
    parts: list[Child] = [element("h2", "Contention"), _contention(catalog)]
    for source in resources.metrics(catalog, {}).sources:
        parts += _source(source)
    if not catalog.sources:
        parts.append(
            element(
                "p",
                "Commit latencies, and commits that were refused, are known to the processes that "
                "commit. Let them serve their metrics (",
                code("lake.serve_metrics(port=9188)"),
                "), and start this page with ",
                code("--metrics http://host:9188/metrics"),
                ".",
                class_="note",
            )
        )
    return page("Metrics", parts, at="/metrics-page")


def _contention(catalog: Catalog) -> Child:
    try:
        found = resources.contention(catalog, {})
    except DeltaLakeDbError as error:
        return element("p", advice(str(error)), class_="bad")
    if not found.commits:
        return element("p", "Nothing was committed yet.", class_="quiet")
    most = f" (one of them over {found.rebased_over_most:,})" if found.rebased else ""
    return element(
        "p",
        f"Of the newest {found.commits:,} commits of all tables, {found.rebased:,} were rebased "
        f"over commits that others had made since their writer last looked at the table{most}.",
    )


def _source(source: Source) -> list[Child]:
    parts: list[Child] = [element("h2", f"Metrics of {source.source}")]
    if source.error:
        return [*parts, element("p", source.error, class_="bad")]
    rate = source.conflicts_per_version
    told = (
        "Nothing was committed there."
        if rate is None
        else f"{rate:.3f} conflicts for each version that was committed."
    )
    return [
        *parts,
        element("p", told),
        rows(
            ("latency", "count#", "mean#", "half within#", "95% within#", "99% within#"),
            [
                (
                    name,
                    f"{found.count:,}",
                    _count(found.mean),
                    *(_within(found, one) for one in (found.p50, found.p95, found.p99)),
                )
                for name, found in source.histograms.items()
            ],
            "Nothing was measured yet.",
        ),
        rows(
            ("metric", "value#"),
            [(name, _count(value)) for name, value in source.values.items()],
            "",
            tight=True,
        ),
    ]


def _count(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


def _within(found: Histogram, bound: float | None) -> str | None:
    """A quantile; one beyond the last bucket is only known to be more."""
    return "more" if bound is None and found.count else _count(bound)


def retried(answer: Retried) -> str:
    """What became of a table that was to be published at once."""
    found = answer.table
    return page(
        "Published" if found.mirror.state == "published" else "Not published",
        element("p", f"{answer.published} versions were published."),
        [element("p", advice(error), class_="wrong") for error in answer.errors],
        element("p", _state(found.mirror), " ", table_link(found.name)),
        at="/mirror",
    )


def failed(status: int, what: str, why: str, fix: str) -> str:
    """What went wrong."""
    title = f"{status}: {as_commands(what)}"[:300]
    return page(title, element("p", advice(why)), element("p", advice(fix)))


_VERSIONS = RESOURCES["/api/v1/versions"].parameters
_CHANGES = RESOURCES["/api/v1/changes"].parameters
_NEWEST = parse("limit=20", _CHANGES)
_TABLES = RESOURCES["/api/v1/tables"].parameters
_Page = Callable[[Catalog, Mapping[str, Any]], str]
PAGES: Mapping[str, tuple[_Page, tuple[Parameter, ...]]] = {
    "/": (overview, ()),
    "/changes": (changes, _CHANGES),
    "/tables": (tables, _TABLES),
    "/table": (table, _VERSIONS),
    "/files": (files, RESOURCES["/api/v1/files"].parameters),
    "/mirror": (mirror, tuple(one for one in _TABLES if one.name in ("cursor", "limit"))),
    "/metrics-page": (metrics, ()),
}
