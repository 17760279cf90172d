"""HTML that cannot be forgotten to escape.

Only `element` makes markup, of tag and attribute names that are written in this package; every text
and every attribute value is escaped there. There is no way to mark a string as safe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
_EMPTY = frozenset({"input", "link", "meta"})
_NO_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)


class Markup:
    """A finished part of a page."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


Child = Markup | str | int | float | None | Iterable["Child"]


def element(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element. A trailing underscore is taken off names (`class_`), others become hyphens.

    Attributes that are None or False are left out; True has no value.
    """
    parts = [f"<{_checked(tag)}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        parts.append(f" {_checked(name.rstrip('_').replace('_', '-'))}")
        if value is not True:
            parts.append(f'="{plain(value)}"')
    parts.append(">")
    if tag not in _EMPTY:
        parts += [_rendered(child) for child in children]
        parts.append(f"</{tag}>")
    return Markup("".join(parts))


def document(root: Markup) -> str:
    """A whole page."""
    return f"<!doctype html>\n{root}"


def plain(value: object) -> str:
    """A text, escaped for content and attributes; what turns or hides text is made visible."""
    return escape(_NO_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value)), quote=True)


def _rendered(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return str(child)
    if isinstance(child, (str, int, float)):
        return plain(child)
    return "".join(map(_rendered, child))


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an element or attribute")
    return name
