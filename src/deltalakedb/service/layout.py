"""What pages are put together from: the frame, tables, facts, forms, links and advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Final
from urllib.parse import urlencode

from deltalakedb.advice import as_commands
from deltalakedb.formatting import moment
from deltalakedb.service.markup import Child, Markup, document, element
from deltalakedb.service.parameters import query_of

STYLE: Final = (files("deltalakedb.service") / "style.css").read_text("utf-8")
_SECTIONS: Final[Mapping[str, str]] = {
    "/": "Overview",
    "/tables": "Tables",
    "/changes": "Changes",
    "/mirror": "Mirror",
    "/metrics-page": "Metrics",
}
# How a column is shown, by the last character of its title.
_KINDS: Final = {"#": "number", "@": "time", "~": "who", "…": "long"}


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
                element(
                    "main",
                    element("h1", title, class_="long" if len(title) > 80 else None),
                    content,
                ),
            ),
            lang="en",
        )
    )


def rows(
    columns: Sequence[str], cells: Iterable[Sequence[Child]], empty: str, *, tight: bool = False
) -> Markup:
    """A table; a column whose title ends with # holds numbers, @ times, ~ people, … long texts.

    A `tight` one is only as wide as it has to be.
    """
    kinds = [_KINDS.get(column[-1:]) for column in columns]
    body = [
        element(
            "tr", [element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)]
        )
        for row in cells
    ]
    if not body:
        return element("p", empty, class_="quiet")
    heads = [
        element(
            "th",
            column[:-1] if kind else column,
            scope="col",
            class_="number" if kind == "number" else None,
        )
        for column, kind in zip(columns, kinds, strict=True)
    ]
    table = element(
        "table",
        element("thead", element("tr", heads)),
        element("tbody", body),
        class_="tight" if tight else None,
    )
    return element("div", table, class_="scroll")


def facts(found: Iterable[tuple[str, Child]]) -> Markup:
    """Names and values, each in a box."""
    return element(
        "dl", [element("div", element("dt", name), element("dd", value)) for name, value in found]
    )


def url(path: str, **values: str | int | bool | None) -> str:
    """An address of this server."""
    query = urlencode(query_of(values))
    return f"{path}?{query}" if query else path


def table_link(name: str) -> Markup:
    """The way to the page of a table."""
    return element("a", name, href=url("/table", name=name), class_="name")


def when(milliseconds: int | None) -> Markup | None:
    """A time (UTC), to the second; its milliseconds show when it is pointed at."""
    exact = moment(milliseconds)
    if exact is None:
        return None
    shown = exact[:19].replace("T", " ") if exact.endswith("Z") else exact
    return element("time", shown, datetime=exact, title=exact)


def more(path: str, following: str | None, **values: str | int | bool | None) -> Markup | None:
    """The way to the next page of a list, where there is one."""
    if following is None:
        return None
    return element("p", element("a", "Next page", href=url(path, **values, cursor=following)))


def field(
    label: str,
    name: str,
    value: str | None,
    *,
    kind: str = "text",
    hint: str | None = None,
    placeholder: str | None = None,
    known: Sequence[str] = (),
) -> Markup:
    """A field of a form; `known` are values that a browser offers while somebody types."""
    choices = f"known-{name}" if known else None
    return element(
        "label",
        element("span", label, element("small", f" {hint}") if hint else None),
        element(
            "input",
            name=name,
            type=kind,
            value=value or None,
            placeholder=placeholder,
            list=choices,
            autocomplete="off",
        ),
        element("datalist", [element("option", value=one) for one in known], id=choices)
        if known
        else None,
    )


def advice(text: str | None) -> Child:
    """What an error says, with the commands that it advises instead of Python."""
    if text is None:
        return None
    parts = as_commands(text).split("`")
    if len(parts) % 2 == 0:  # a backtick that opens and does not close
        return text
    return [code(part) if n % 2 else part for n, part in enumerate(parts)]


def code(text: str) -> Markup:
    """Something to type; a short one stays on one line."""
    return element("code", text, class_="short" if len(text) <= 48 else None)
