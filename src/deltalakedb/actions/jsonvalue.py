"""JSON of the Delta log: exact numbers, and one canonical text.

Guarantees:

- `loads` never loses a digit: integers stay integers of any size, every other number becomes a
  `decimal.Decimal`. Bare `NaN`/`Infinity`, lone surrogates, broken UTF-8 and absurd nesting are
  refused with an `InvalidActionError`. Of duplicate keys the last one wins, as in Spark's parser.
- `dumps` is canonical: equal values give equal text, whatever the order of keys or the way a
  number was written. Objects are sorted by key (by code point), separators are compact, text is
  left unescaped except where JSON demands it.
- `freeze` converts values of a user to exactly those that `loads` would return.

How a number that is not an `int` prints: its exact decimal value, trailing zeros removed, always
with a fraction (`100.0`, never `100`), plain while 1e-7 <= |x| < 1e21 and otherwise as
`d.ddde<exponent>`. Zero is `0.0` whatever its sign. A Python float counts as its shortest `repr`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from json import encoder as json_encoder
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

from deltalakedb.errors import InvalidActionError

MAX_DEPTH: Final = 300
"""Deepest nesting accepted; beyond it a document is an attack on the stack, not a Delta log."""

_PLAIN_FROM: Final = -7
_PLAIN_BELOW: Final = 21


def _encoder(*, sort_keys: bool) -> Callable[[Any], str]:
    """One encoder for every call: building one costs as much as encoding a small action.

    `JSONEncoder.encode` builds its C part for each call, so it is built here where there is one.
    """
    encoder = json.JSONEncoder(
        ensure_ascii=False,
        check_circular=False,
        allow_nan=False,
        separators=(",", ":"),
        sort_keys=sort_keys,
    )
    make: Any = getattr(json_encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    skip_keys = allow_nan = False
    chunks = make(
        None, encoder.default, encode_basestring, None, ":", ",", sort_keys, skip_keys, allow_nan
    )
    return lambda value: "".join(chunks(value, 0))


_encode: Final = _encoder(sort_keys=False)
_encode_sorted: Final = _encoder(sort_keys=True)


def loads(text: str | bytes) -> Any:
    """Parse one strict JSON document; raises `InvalidActionError` for anything else."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidActionError(
                "Cannot parse JSON",
                why=f"byte {error.start} is not valid UTF-8",
                fix="Write the document as UTF-8",
            ) from error
    elif not text.isascii():
        _refuse_surrogates(text)
    try:
        value = _decode(text)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise InvalidActionError(
            "Cannot parse JSON", why=str(error), fix="Pass one complete JSON document"
        ) from error
    if text.count("{") + text.count("[") > MAX_DEPTH:
        _check_depth(value)
    # The scanner turns an escaped half of a surrogate pair into a lone code point that no UTF-8
    # file can hold; only a text with such an escape needs the walk.
    if "\\u" in text and ("\\ud" in text or "\\uD" in text):
        _check_surrogates(value)
    return value


def dumps(value: Any) -> str:
    """Write `value` as canonical JSON text (see the module docstring for every rule)."""
    try:
        own = _needs_own_writer(value)
        text = _write(value, ordered=False) if own else _encode_sorted(value)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _bad("value", str(error), "Pass a smaller number") from error
    return _checked(text, value)


def dumps_ordered(value: Any, *, plain: bool = False) -> str:
    """Write a value in its own key order, for objects whose order a caller has settled.

    `plain` promises that no float or Decimal is inside: then it is one call into the C encoder.
    """
    try:
        own = not plain and _needs_own_writer(value)
        text = _write(value, ordered=True) if own else _encode(value)
    except RecursionError as error:
        raise _too_deep() from error
    except (TypeError, ValueError) as error:
        raise _bad("value", str(error), "Pass only values that JSON can hold") from error
    return _checked(text, value)


def texts(values: Sequence[str] | Sequence[Sequence[str]]) -> str:
    """Write strings, or lists of strings, as a JSON array: for parameters of SQL, unchecked."""
    return _encode(values)


def canonical(value: Any) -> Any:
    """Copy a JSON value with every object inside sorted by key."""
    if isinstance(value, Mapping):
        return {key: canonical(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    return value


def _checked(text: str, value: Any) -> str:
    if not text.isascii():
        _refuse_surrogates(text)
    if text.count("{") + text.count("[") > MAX_DEPTH:
        _check_depth(value)
    return text


def freeze(value: Any, *, path: str = "value") -> Any:
    """Normalise a Python value to what `loads` gives: dict, list, str, int, bool, Decimal, None.

    Copies every container, so later changes by the caller have no effect. Raises
    `InvalidActionError` naming the path to the first value that JSON cannot hold.
    """
    try:
        return _freeze(value, path, 0)
    except RecursionError as error:
        raise _too_deep() from error


def format_number(number: Decimal | float) -> str:
    """Format a number that is not an `int` by the one canonical rule."""
    exact = Decimal(float.__repr__(number)) if isinstance(number, float) else number
    if not exact.is_finite():
        raise InvalidActionError(
            f"Cannot write {exact} as JSON",
            why="JSON has no NaN and no infinity",
            fix="Leave the value out or write null",
        )
    sign, digits, exponent = exact.as_tuple()
    # Finite, therefore a real exponent; as_tuple types it with the special markers too.
    power = int(exponent)
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    power += len(text) - len(stripped)
    if not stripped:
        return "0.0"
    adjusted = power + len(stripped) - 1
    minus = "-" if sign else ""
    if _PLAIN_FROM <= adjusted < _PLAIN_BELOW:
        return minus + _plain(stripped, power)
    fraction = f".{stripped[1:]}" if len(stripped) > 1 else ""
    return f"{minus}{stripped[0]}{fraction}e{adjusted}"


def _plain(digits: str, power: int) -> str:
    if power >= 0:
        return f"{digits}{'0' * power}.0"
    if len(digits) > -power:
        return f"{digits[:power]}.{digits[power:]}"
    return f"0.{'0' * (-power - len(digits))}{digits}"


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        message = f"the number {text[:40]} has an exponent beyond any use"
        raise ValueError(message) from error


def _refuse_constant(token: str) -> NoReturn:
    message = f"{token} is not JSON"
    raise ValueError(message)


def _too_deep() -> InvalidActionError:
    return InvalidActionError(
        "Cannot handle the JSON document",
        why=f"it is nested deeper than {MAX_DEPTH} levels",
        fix="Flatten it; no Delta action needs such nesting",
    )


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidActionError(
            "Cannot handle the text",
            why=f"it holds half of a surrogate pair (U+{ord(text[error.start]):04X}), "
            "which UTF-8 cannot store",
            fix="Repair the text; it was probably cut in the middle of a character",
        ) from error


def _check_surrogates(value: Any) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            _refuse_surrogates(item)
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return
        level = inner
    raise _too_deep()


# One decoder for every call, as with the encoders above; it needs the two hooks to exist first.
_decode: Final[Callable[[str], Any]] = json.JSONDecoder(
    parse_float=_decimal, parse_constant=_refuse_constant
).decode


def _needs_own_writer(value: Any) -> bool:
    """Whether the C encoder is not sufficient; refuses values that JSON does not have."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return False
    if kind is dict:
        needed = False
        for key, item in value.items():
            if type(key) is not str:
                _freeze(value, "value", 0)
                return True
            needed = _needs_own_writer(item) or needed
        return needed
    if kind is list:
        needed = False
        for item in value:
            needed = _needs_own_writer(item) or needed
        return needed
    if kind is not Decimal and kind is not float:
        _freeze(value, "value", 0)
    return True


def _write(value: Any, *, ordered: bool) -> str:
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, (Decimal, float)):
        return format_number(value)
    if isinstance(value, Mapping):
        keys = value if ordered else sorted(value)
        items = [f"{encode_basestring(k)}:{_write(value[k], ordered=ordered)}" for k in keys]
        return f"{{{','.join(items)}}}"
    return f"[{','.join(_write(item, ordered=ordered) for item in value)}]"


def _freeze(value: Any, path: str, depth: int) -> Any:
    if value is None or isinstance(value, (str, int, float, Decimal)):
        return _freeze_scalar(value, path)
    if depth >= MAX_DEPTH:
        raise _too_deep()
    if isinstance(value, Mapping):
        frozen: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _bad(path, f"the key {key!r} is not a string", "Pass string keys")
            if not key.isascii():
                _refuse_surrogates(key)
            frozen[str.__str__(key)] = _freeze(item, f"{path}.{key}", depth + 1)
        return frozen
    if isinstance(value, (list, tuple)):
        return [_freeze(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise _bad(
        path,
        f"{type(value).__name__} has no JSON form",
        "Pass a string, number, boolean, None, list or mapping of these",
    )


def _bad(path: str, why: str, fix: str) -> InvalidActionError:
    return InvalidActionError(f"Cannot store {path} as JSON", why=why, fix=fix)


def _freeze_scalar(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not value.isascii():
            _refuse_surrogates(value)
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    number = Decimal(float.__repr__(value)) if isinstance(value, float) else value
    if not number.is_finite():
        raise _bad(path, f"{value} has no JSON form", "Leave it out or pass None")
    return number
