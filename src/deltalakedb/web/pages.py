"""The pages for people, each made of what the JSON API answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from deltalakedb.readable import duration, moment, size
from deltalakedb.web import resources
from deltalakedb.web.markup import Child, Markup, document, element
from deltalakedb.web.parameters import Parameter, parse, query_of
from deltalakedb.web.plots import bars, line
from deltalakedb.web.resources import RESOURCES, Catalog

STYLE = """\
:root { color-scheme: light dark; --line: #8883; --soft: #8881; --accent: #2a6fdb; --bad: #c22; }
@media (prefers-color-scheme: dark) { :root { --accent: #7fb0ff; --bad: #f77; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 76rem;
  padding: 0 1rem 3rem; }
h1 { font-size: 1.6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
nav { display: flex; flex-wrap: wrap; gap: 1.4rem; padding: .8rem 0;
  border-bottom: 1px solid var(--line); }
nav a { text-decoration: none; padding-bottom: .1rem; }
nav a[aria-current] { font-weight: 600; border-bottom: 2px solid; }
nav .brand { font-weight: 700; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-size: .85rem; font-weight: 600; opacity: .75; white-space: nowrap; }
td { overflow-wrap: anywhere; min-width: 5rem; }
td:first-child { min-width: 8rem; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;
  min-width: 0; }
tbody tr:hover { background: var(--soft); }
a { color: var(--accent); unicode-bidi: isolate; }
form { margin: .8rem 0; display: flex; flex-wrap: wrap; gap: .6rem; align-items: end; }
label { display: flex; flex-direction: column; font-size: .85rem; }
input, button { font: inherit; padding: .25rem .5rem; border: 1px solid #8888;
  border-radius: .3rem; }
button { background: var(--accent); color: Canvas; border-color: var(--accent); cursor: pointer; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .8rem;
  margin: 1rem 0; }
dl div { background: var(--soft); border-radius: .4rem; padding: .6rem .9rem; }
dt { font-size: .85rem; opacity: .75; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.bad { color: var(--bad); font-weight: 600; }
.quiet { opacity: .7; overflow-wrap: anywhere; }
.plots { display: flex; flex-wrap: wrap; gap: 0 2rem; }
.plots figure { flex: 1 1 24rem; }
figure { margin: 1rem 0; }
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .3rem; }
svg { max-width: 100%; height: auto; }
svg text { font-size: 12px; fill: currentColor; }
svg .bar { fill: var(--accent); }
svg .line { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; }
svg .axis { stroke: currentColor; opacity: .3; }
summary { cursor: pointer; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""
_SECTIONS = {
    "/": "Overview",
    "/tables": "Tables",
    "/changes": "Changes",
    "/mirror": "Mirror",
    "/metrics-page": "Metrics",
}


def page(title: str, *content: Child, at: str = "") -> str:
    """A whole page with its navigation."""
    links = [
        element("a", name, href=path, aria_current="page" if path == at else None)
        for path, name in _SECTIONS.items()
    ]
    return document(
        element(
            "html",
            element(
                "head",
                element("meta", charset="utf-8"),
                element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                element("title", f"{title} · deltalakedb"),
                element("link", rel="stylesheet", href="/style.css"),
            ),
            element(
                "body",
                element(
                    "nav",
                    element("span", "deltalakedb", class_="brand"),
                    links,
                    aria_label="Sections",
                ),
                element("main", element("h1", title), content),
            ),
            lang="en",
        )
    )


def _rows(columns: Sequence[str], rows: Iterable[Sequence[Child]], empty: str) -> Markup:
    """A table; a column whose title ends with # holds numbers."""
    kinds = ["number" if column.endswith("#") else None for column in columns]
    body = [
        element(
            "tr", [element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)]
        )
        for row in rows
    ]
    if not body:
        return element("p", empty, class_="quiet")
    heads = [
        element("th", column.rstrip("#"), scope="col", class_=kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return element("table", element("thead", element("tr", heads)), element("tbody", body))


def _url(path: str, **values: str | int | bool | None) -> str:
    query = urlencode(query_of(values))
    return f"{path}?{query}" if query else path


def _table_link(name: str) -> Markup:
    return element("a", name, href=_url("/table", name=name))


def _more(path: str, following: str | None, **values: str | int | bool | None) -> Markup | None:
    if following is None:
        return None
    return element("p", element("a", "Next page", href=_url(path, **values, cursor=following)))


def _state(mirror: Mapping[str, Any]) -> Markup:
    wrong = mirror["state"] in ("failing", "blocked", "drifted")
    return element("span", mirror["state"], class_="bad" if wrong else None)


# --- pages --------------------------------------------------------------------------------


def overview(catalog: Catalog, _: Mapping[str, Any]) -> str:
    """The catalog in numbers, and what was changed last."""
    numbers = resources.summary(catalog, {})
    facts = [
        ("Tables", f"{numbers['tables']:,}"),
        ("Versions", f"{numbers['versions']:,}"),
        ("Live files", f"{numbers['live_files']:,} ({size(numbers['live_bytes'])})"),
        ("To publish", f"{numbers['backlog']:,} in {numbers['tables_behind']:,} tables"),
        ("Mirror lag", duration(numbers["lag_ms"])),
        ("Drifted tables", f"{numbers['tables_drifted']:,}"),
    ]
    return page(
        "Overview",
        element(
            "dl",
            [element("div", element("dt", name), element("dd", value)) for name, value in facts],
        ),
        element("h2", "Changed last"),
        _changes(resources.changes(catalog, _NEWEST)),
        element("p", element("a", "Search all changes", href="/changes")),
        at="/",
    )


def changes(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """Who changed what, in all tables."""
    found = resources.changes(catalog, asked)
    return page(
        "Changes",
        element("form", _search_fields(asked), element("button", "Search"), action="/changes"),
        _changes(found),
        _more("/changes", found["next"], **_searched(asked)),
        at="/changes",
    )


def _changes(found: Mapping[str, Any]) -> Markup:
    return _rows(
        ("time", "table", "version#", "committer", "operation", "added#", "removed#"),
        [
            (
                moment(one["committed_at"]),
                _table_link(one["name"]),
                one["version"],
                one["committer"],
                _operation(one),
                one["num_adds"],
                one["num_removes"],
            )
            for one in found["changes"]
        ],
        _nothing_fits(found),
    )


def _nothing_fits(found: Mapping[str, Any]) -> str:
    if found["next"]:
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
        _field("Operation", "operation", search["operation"]),
        _field("Committer", "committer", search["committer"]),
        _field("Since", "since", search["since"], placeholder="2026-11-01T00:00:00Z"),
        _field("Until", "until", search["until"], placeholder="2026-11-30T00:00:00Z"),
    ]


def tables(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """Every table, by name."""
    found = resources.tables(catalog, asked)
    contains = asked["contains"]
    return page(
        "Tables",
        element(
            "form",
            _field("Name contains", "contains", contains),
            element("button", "Search"),
            action="/tables",
        ),
        _rows(
            ("table", "version#", "last commit", "committer", "files#", "size#", "mirror"),
            [
                (
                    _table_link(one["name"]),
                    one["version"],
                    moment(one["committed_at"]),
                    one["committer"],
                    f"{one['live_files']:,}",
                    size(one["live_bytes"]),
                    _state(one["mirror"]),
                )
                for one in found["tables"]
            ],
            "No table fits.",
        ),
        _more("/tables", found["next"], contains=contains),
        at="/tables",
    )


def mirror(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """The tables whose `_delta_log` is behind, and why."""
    found = resources.tables(catalog, {**asked, "behind": True, "contains": None})
    return page(
        "Mirror",
        element(
            "p",
            "Tables whose _delta_log is behind the catalog, or has drifted from it. "
            "The page of a table has the button that publishes it now.",
        ),
        _rows(
            ("table", "state", "head#", "published#", "waiting#", "lag#", "what is wrong"),
            [
                (
                    _table_link(one["name"]),
                    _state(one["mirror"]),
                    one["version"],
                    one["mirror"]["published_version"],
                    one["mirror"]["backlog"],
                    duration(one["mirror"]["lag_ms"]),
                    one["mirror"]["last_error"] or one["mirror"]["checkpoint_error"],
                )
                for one in found["tables"]
            ],
            "Everything is published.",
        ),
        _more("/mirror", found["next"]),
        at="/mirror",
    )


def table(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """One table: its history, its growth, its files, its mirror."""
    name = asked["name"]
    one = resources.table(catalog, asked)
    history = resources.versions(catalog, asked)
    return page(
        name,
        element("p", one["location"], class_="quiet"),
        element(
            "p",
            f"Version {one['version']}, {one['live_files']:,} files, {size(one['live_bytes'])}. ",
            element("a", "Files", href=_url("/files", name=name)),
        ),
        _growth(resources.growth(catalog, asked)["points"]),
        element("h2", "Mirror"),
        _mirror_of(name, one["mirror"]),
        element("h2", "Who changed what"),
        element(
            "form",
            element("input", type="hidden", name="name", value=name),
            _search_fields(asked),
            element("button", "Search"),
            action="/table",
        ),
        _rows(
            ("version#", "time", "committer", "operation", "added#", "removed#", "files#", "size#"),
            [
                (
                    row["version"],
                    moment(row["committed_at"]),
                    row["committer"],
                    _operation(row),
                    row["num_adds"],
                    row["num_removes"],
                    f"{row['live_files']:,}",
                    size(row["live_bytes"]),
                )
                for row in history["versions"]
            ],
            _nothing_fits(history),
        ),
        _more("/table", history["next"], name=name, **_searched(asked)),
        at="/tables",
    )


def _operation(row: Mapping[str, Any]) -> Child:
    given = row["operation_parameters"]
    if not given:
        return row["operation"]  # type: ignore[no-any-return]
    text = json.dumps(given, ensure_ascii=False)
    shown = text if len(text) <= 500 else f"{text[:500]}…"
    return element(
        "details", element("summary", row["operation"] or "(unnamed)"), element("pre", shown)
    )


def _growth(points: Sequence[Mapping[str, Any]]) -> Child:
    if len(points) < 2:
        return None
    ends = (moment(points[0]["committed_at"]), moment(points[-1]["committed_at"]))
    pairs: tuple[tuple[str, str, Callable[[int], str]], ...] = (
        ("live_files", "Live files over time", lambda value: f"{value:,}"),
        ("live_bytes", "Live bytes over time", size),
    )
    return element(
        "div",
        [
            line(
                [(point["committed_at"], point[key]) for point in points],
                title=title,
                ends=ends,
                shown=shown,
            )
            for key, title, shown in pairs
        ],
        class_="plots",
    )


def _mirror_of(name: str, found: Mapping[str, Any]) -> Child:
    facts: list[tuple[str, Child]] = [
        ("State", _state(found)),
        ("Published up to", found["published_version"]),
        ("Waiting", f"{found['backlog']} versions, for {duration(found['lag_ms'])}"),
        ("Checkpoint", found["checkpoint_version"]),
    ]
    if found["last_error"]:
        following = moment(found["next_attempt_at"]) or "as soon as a worker looks"
        facts.append(("Last error", found["last_error"]))
        facts.append(("Attempts", f"{found['attempts']}; next: {following}"))
    if found["checkpoint_error"]:
        facts.append(("Checkpoint error", found["checkpoint_error"]))
    if found["lease_owner"]:
        facts.append(("Tended by", found["lease_owner"]))
    parts: list[Child] = [_rows(("", " "), facts, "")]
    if found["drift"] is not None:
        parts += [
            element("h3", "Drift report"),
            element("pre", json.dumps(found["drift"], indent=2, ensure_ascii=False)),
            element(
                "p", "deltalakedb verify compares all of it; adopt takes foreign commits over."
            ),
        ]
    if found["state"] != "published":
        parts.append(
            element(
                "form",
                element("input", type="hidden", name="name", value=name),
                _field("Token", "token", None, kind="password"),
                element("button", "Publish now"),
                method="post",
                action="/retry",
            )
        )
    return parts


def _field(
    label: str, name: str, value: str | None, *, kind: str = "text", placeholder: str | None = None
) -> Markup:
    return element(
        "label",
        label,
        element(
            "input",
            name=name,
            type=kind,
            value=value or None,
            placeholder=placeholder,
            autocomplete="off",
        ),
    )


def files(catalog: Catalog, asked: Mapping[str, Any]) -> str:
    """The live files of a table, and how large they are."""
    name = asked["name"]
    found = resources.files(catalog, asked)
    sizes = resources.sizes(catalog, asked)
    counted = sizes["counted"]
    title = "Live files by size, each bar up to"
    if counted < sizes["live_files"]:
        title = f"The newest {counted:,} live files by size, each bar up to"
    labels = [_power(one["below"]) if one["below"] else "more" for one in sizes["sizes"]]
    counts = [one["files"] for one in sizes["sizes"]]
    return page(
        f"Files of {name}",
        element("p", element("a", "Back to the table", href=_url("/table", name=name))),
        bars(list(zip(labels, counts, strict=True)), title=title, shown=lambda n: f"{n:,}"),
        _rows(
            ("path", "partition", "size#", "modified", "since version#"),
            [
                (
                    row["path"],
                    json.dumps(row["partition_values"], ensure_ascii=False)
                    if row["partition_values"]
                    else None,
                    size(row["size_bytes"]),
                    moment(row["modification_time"]),
                    row["added_version"],
                )
                for row in found["files"]
            ],
            "No live files.",
        ),
        _more("/files", found["next"], name=name),
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
    parts: list[Child] = []
    for source in resources.metrics(catalog, {})["sources"]:
        parts.append(element("h2", source["source"]))
        if source["error"]:
            parts.append(element("p", source["error"], class_="bad"))
            continue
        rate = source["conflicts_per_version"]
        parts.append(
            element(
                "p",
                "Nothing was committed there."
                if rate is None
                else f"{rate:.3f} conflicts for each version that was committed.",
            )
        )
        parts.append(
            _rows(
                ("latency", "count#", "mean#", "half within#", "95% within#", "99% within#"),
                [
                    (name, found["count"], found["mean"], found["p50"], found["p95"], found["p99"])
                    for name, found in source["histograms"].items()
                ],
                "Nothing was measured yet.",
            )
        )
        parts.append(
            _rows(("metric", "value#"), [(n, f"{v:g}") for n, v in source["values"].items()], "")
        )
    return page("Metrics", parts, at="/metrics-page")


def retried(answer: Mapping[str, Any]) -> str:
    """What became of a table that was to be published at once."""
    found = answer["table"]
    return page(
        "Published" if found["mirror"]["state"] == "published" else "Not published",
        element("p", f"{answer['published']} versions were published."),
        [element("p", error, class_="bad") for error in answer["errors"]],
        element("p", _table_link(found["name"]), ": ", _state(found["mirror"])),
        at="/mirror",
    )


def failed(status: int, what: str, why: str, fix: str) -> str:
    """What went wrong."""
    return page(f"{status}: {what}"[:300], element("p", why), element("p", fix))


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
