"""Checks of arguments of public calls, before anything is done.

Each function returns the value or raises `InvalidArgumentError`, which is also a `TypeError` and a
`ValueError`. The error contains the value, so secrets are not checked here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from deltalakedb.errors import InvalidArgumentError


def refuse(name: str, value: object, kind: str, *, fix: str = "") -> NoReturn:
    """Raise the error for an argument of the wrong kind; `kind` is e.g. "a string"."""
    raise InvalidArgumentError(
        f"{name} needs to be {kind}, and not {short_repr(value)}",
        fix=fix or f"Pass {kind} as {name}",
    )


def short_repr(value: object) -> str:
    """Return the repr of a value for an error, shortened."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def require_text(name: str, value: object, *, fix: str = "") -> str:
    """Require text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        refuse(name, value, "a string that is not empty", fix=fix)
    return value


def require_bytes(name: str, value: object) -> bytes:
    """Require bytes."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        refuse(name, value, "bytes")
    return bytes(value)


def optional_text(name: str, value: object) -> str | None:
    """Require text, possibly empty, or None."""
    if value is not None and not isinstance(value, str):
        refuse(name, value, "a string")
    return value


def require_flag(name: str, value: object) -> bool:
    """Require True or False; other truthy and falsy values are refused."""
    if not isinstance(value, bool):
        refuse(name, value, "a boolean", fix="Pass True or False")
    return value


def require_whole(name: str, value: Any, *, least: int = 0, fix: str = "Pass an int") -> int:
    """Require an integer of at least `least`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InvalidArgumentError(
            f"{name}={short_repr(value)} is no whole number of at least {least}", fix=fix
        )
    return number


def optional_whole(name: str, value: Any, *, least: int = 0) -> int | None:
    """The same, or None."""
    return None if value is None else require_whole(name, value, least=least)


def require_number(name: str, value: Any, *, fix: str = "") -> float:
    """Require a number that is not NaN."""
    # Decimals and the numbers of numpy are numbers too; text that looks like one is not.
    convert = None if isinstance(value, bool | str) else getattr(type(value), "__float__", None)
    number = None if convert is None else float(value)
    if number is None or number != number:  # noqa: PLR0124 - that is what not-a-number is
        refuse(name, value, "a number", fix=fix)
    return number


def require_texts(name: str, value: object, *, fix: str = "") -> list[str]:
    """Require a collection of texts that are not blank; a single string is refused."""
    kind = "a list of strings that are not empty"
    if isinstance(value, str):
        refuse(name, value, kind, fix=fix or f"Pass a list of names, e.g. [{value or 'id'!r}]")
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        refuse(name, value, kind, fix=fix or f"Pass a list of names as {name}")
    texts = list(value)
    if not all(isinstance(text, str) and text.strip() for text in texts):
        refuse(name, value if isinstance(value, (list, tuple)) else texts, kind, fix=fix)
    return texts


def require_function(name: str, value: object) -> None:
    """Require a callable or None."""
    if value is not None and not callable(value):
        refuse(name, value, "a function")


def require_flags(**flags: object) -> None:
    """Require several booleans, by name."""
    for name, value in flags.items():
        require_flag(name, value)


def optional_texts(**texts: object) -> None:
    """Require several texts or None, by name."""
    for name, value in texts.items():
        optional_text(name, value)


def require_names(name: str, value: object) -> list[str]:
    """Require a list of texts; a single string stands for a list of one."""
    return require_texts(name, [value] if isinstance(value, str) else value)


def require_kind(name: str, value: object, kind: type, what: str) -> None:
    """Require an instance of a class; `what` names it with its article."""
    if not isinstance(value, kind):
        refuse(name, value, what)


def optional_kind(name: str, value: object, kind: type, what: str) -> None:
    """The same, or None."""
    if value is not None:
        require_kind(name, value, kind, what)


def require_session(name: str, value: object) -> None:
    """Require a Spark session; pyspark is not imported."""
    if not hasattr(value, "createDataFrame") or not hasattr(value, "conf"):
        refuse(name, value, "a Spark session")


def optional_session(name: str, value: object) -> None:
    """The same, or None."""
    if value is not None:
        require_session(name, value)


def require_mapping(name: str, value: object, *, fix: str) -> Mapping[str, Any]:
    """Require a mapping of names to values."""
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and k.strip() for k in value):
        refuse(name, value, "a mapping of names to values", fix=fix)
    return value
