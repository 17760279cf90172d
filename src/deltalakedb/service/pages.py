r"""The pages for people: each is a template, filled with the answers of the JSON API.

Guarantees:

- Jinja escapes every value; no template marks a text as safe.
- Characters that hide or turn text (controls, bidirectional overrides) appear as `\u202e`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files as package_files
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from deltalakedb.advice import as_commands, command_line
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.formatting import duration, moment, size
from deltalakedb.service import resources
from deltalakedb.service.answers import Retried
from deltalakedb.service.parameters import Parameter, parse, query_of
from deltalakedb.service.plots import Plot, plot_bars, plot_line
from deltalakedb.service.resources import RESOURCES, Catalog

STYLE: Final = (package_files("deltalakedb.service") / "style.css").read_text("utf-8")
# The usual names of operations: ours, and those of Delta on Spark and delta-rs.
OPERATIONS: Final = (
    *("WRITE", "MERGE", "UPDATE", "DELETE", "STREAMING UPDATE", "OPTIMIZE", "RESTORE"),
    *("CREATE TABLE", "CREATE TABLE AS SELECT", "CREATE OR REPLACE TABLE", "CLONE", "CONVERT"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD COLUMNS", "RENAME TABLE", "CLUSTER BY"),
    *("UPGRADE PROTOCOL", "DROP FEATURE", "VACUUM START", "VACUUM END"),
)
SECTIONS: Final[Mapping[str, str]] = {
    "/": "Overview",
    "/tables": "Tables",
    "/changes": "Changes",
    "/mirror": "Mirror",
    "/metrics-page": "Metrics",
}
_UNITS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
_HIDING: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `values` reads from the catalog what its template shows, its title included."""

    path: str
    template: str
    section: str
    values: Callable[[Catalog, Values], Values]
    parameters: tuple[Parameter, ...] = ()

    def render(self, catalog: Catalog, query: str) -> str:
        """The page as HTML."""
        values = self.values(catalog, parse(query, self.parameters))
        return _render(self.template, section=self.section, changeable=catalog.changeable, **values)


# --- values -------------------------------------------------------------------------------


def overview(catalog: Catalog, _: Values) -> Values:
    """The catalog in numbers, and its newest commits."""
    return {
        "title": "Overview",
        "summary": resources.summary(catalog, {}),
        "plots": _activity(catalog, None),
        "changes": resources.changes(catalog, _NEWEST),
    }


def changes(catalog: Catalog, asked: Values) -> Values:
    """The commits of all tables."""
    commits = resources.changes(catalog, asked)
    return {"title": "Changes", "changes": commits, "search": _search(asked)}


def tables(catalog: Catalog, asked: Values) -> Values:
    """Every table, by name."""
    search = {name: asked[name] for name in ("contains", "behind")}
    return {"title": "Tables", "tables": resources.tables(catalog, asked), **search}


def mirror(catalog: Catalog, asked: Values) -> Values:
    """The tables whose `_delta_log` is behind, and why."""
    behind = resources.tables(catalog, {**asked, "behind": True, "contains": None})
    return {"title": "Mirror", "tables": behind}


def table(catalog: Catalog, asked: Values) -> Values:
    """One table: its history, its growth, its mirror."""
    name = asked["name"]
    return {
        "title": name,
        "table": resources.table(catalog, asked),
        "history": resources.versions(catalog, asked),
        "plots": [*_activity(catalog, name), *_growth(catalog, name)],
        "search": _search(asked),
    }


def files(catalog: Catalog, asked: Values) -> Values:
    """The live files of a table, and how large they are."""
    name = asked["name"]
    listed = resources.files(catalog, asked)
    sizes = resources.sizes(catalog, asked)
    title = "Live files by size, each bar up to"
    if sizes.counted < sizes.live_files:
        title = (
            f"The newest {sizes.counted:,} of {sizes.live_files:,} live files by size, "
            "each bar up to"
        )
    counts = [(_power(one.below) if one.below else "more", one.files) for one in sizes.sizes]
    plot = plot_bars(counts, title=title)
    return {"title": f"Files of {name}", "name": name, "files": listed, "plot": plot}


def metrics(catalog: Catalog, _: Values) -> Values:
    """Conflicts and latencies of this process and of other sources."""
    contention, error = None, None
    try:
        contention = resources.contention(catalog, {})
    except DeltaLakeDbError as failure:
        error = str(failure)
    return {
        "title": "Metrics",
        "contention": contention,
        "contention_error": error,
        "sources": resources.metrics(catalog, {}).sources,
        "other_sources": catalog.sources,
    }


def retried(answer: Retried) -> str:
    """The page after the button that publishes a table."""
    title = "Published" if answer.table.mirror.state == "published" else "Not published"
    return _render("retried.html", title=title, section="/mirror", retried=answer)


def failed(status: int, error: DeltaLakeDbError) -> str:
    """The page of an error."""
    title = f"{status}: {as_commands(error.what)}"[:300]
    return _render("error.html", title=title, section="", why=error.why, fix=error.fix)


def _search(asked: Values) -> dict[str, str | None]:
    """The conditions of a search, as the form and the link to the next page have them."""
    search: dict[str, str | None] = {key: asked[key] for key in ("operation", "committer")}
    for key in ("since", "until"):
        search[key] = moment(asked[key])
    return search


# --- plots --------------------------------------------------------------------------------


def _activity(catalog: Catalog, name: str | None) -> list[Plot]:
    """Commits over time; no plot where there are none."""
    activity = resources.activity(catalog, {"name": name})
    if not activity.commits:
        return []
    length, unit = next(one for one in _UNITS if activity.step_ms % one[0] == 0)
    count = activity.step_ms // length
    title = f"Commits per {unit}" if count == 1 else f"Commits per {count:,} {unit}s"
    if name is None:
        title += f", the newest {activity.counted:,} of all tables"
    starts = [activity.since + place * activity.step_ms for place in range(len(activity.commits))]
    counts = [(moment(at), count) for at, count in zip(starts, activity.commits, strict=True)]
    return [plot_bars(counts, title=title, ends=_ends(starts[0], starts[-1] + activity.step_ms))]


def _growth(catalog: Catalog, name: str) -> list[Plot]:
    points = resources.growth(catalog, {"name": name}).points
    if len(points) < 2:
        return []
    ends = _ends(points[0].committed_at, points[-1].committed_at)
    live_files = [(point.committed_at, point.live_files) for point in points]
    live_bytes = [(point.committed_at, point.live_bytes) for point in points]
    return [
        plot_line(live_files, title="Live files over time", ends=ends),
        plot_line(live_bytes, title="Live bytes over time", ends=ends, unit=size),
    ]


def _ends(first: int, last: int) -> tuple[str, str]:
    """The times below a plot, as exact as they have to be."""
    length = 16 if last - first >= 600_000 else 19
    start, end = (moment(at)[:length].replace("T", " ") for at in (first, last))
    return start, end


def _power(count: int) -> str:
    for unit in ("KiB", "MiB"):
        count //= 1024
        if count < 1024:
            return f"{count} {unit}"
    return f"{count // 1024} GiB"


# --- templates ----------------------------------------------------------------------------


def _visible(value: object) -> object:
    """A value as text; Jinja calls this for each one before it escapes it."""
    if value is None:
        return ""
    # A macro's result is of a subclass of str, and has been through this.
    if type(value) is str and not value.isprintable():
        return _HIDING.sub(lambda match: f"\\u{ord(match[0]):04x}", value)
    return value


def _url(path: str, /, **values: str | int | bool | None) -> str:
    query = urlencode(query_of(values))
    return f"{path}?{query}" if query else path


def _advice_parts(text: str) -> list[str]:
    """An error's text with the commands that it advises: every second part is a command."""
    parts = as_commands(text).split("`")
    return parts if len(parts) % 2 else [text]  # a backtick that opens and does not close


def _decimal(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def environment() -> Environment:
    """The templates, with the functions that they call."""
    templates = Environment(
        loader=PackageLoader("deltalakedb.service"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.globals.update(
        advice_parts=_advice_parts,
        command_line=command_line,
        decimal=_decimal,
        duration=duration,
        json=_json,
        moment=moment,
        number="{:,}".format,
        operations=OPERATIONS,
        sections=SECTIONS,
        size=size,
        url=_url,
    )
    return templates


_ENVIRONMENT: Final = environment()


def _render(template: str, **values: Any) -> str:
    return _ENVIRONMENT.get_template(template).render(values)


_CHANGES = RESOURCES["/api/v1/changes"].parameters
_NEWEST = parse("limit=20", _CHANGES)
_TABLES = RESOURCES["/api/v1/tables"].parameters
_PAGING = tuple(one for one in _TABLES if one.name in ("cursor", "limit"))
_VERSIONS = RESOURCES["/api/v1/versions"].parameters
_FILES = RESOURCES["/api/v1/files"].parameters
PAGES: Final = (
    Page("/", "overview.html", "/", overview),
    Page("/changes", "changes.html", "/changes", changes, _CHANGES),
    Page("/tables", "tables.html", "/tables", tables, _TABLES),
    Page("/table", "table.html", "/tables", table, _VERSIONS),
    Page("/files", "files.html", "/tables", files, _FILES),
    Page("/mirror", "mirror.html", "/mirror", mirror, _PAGING),
    Page("/metrics-page", "metrics.html", "/metrics-page", metrics),
)
