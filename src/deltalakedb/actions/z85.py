"""Z85 (ZeroMQ RFC 32): four bytes as five printable characters, as deletion vectors use it."""

from __future__ import annotations

from typing import Final

from deltalakedb.errors import InvalidActionError

_ALPHABET: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_DIGIT: Final = {character: value for value, character in enumerate(_ALPHABET)}
_GROUP: Final = 5
_WORD: Final = 4


def encode(data: bytes) -> str:
    """Encode `data`, whose length must be a multiple of four."""
    if len(data) % _WORD:
        raise InvalidActionError(
            "Cannot encode bytes as Z85",
            why=f"{len(data)} bytes is not a multiple of four",
            fix="Pad the data; the reader cuts it back to its recorded size",
        )
    out: list[str] = []
    for start in range(0, len(data), _WORD):
        word = int.from_bytes(data[start : start + _WORD], "big")
        group = []
        for _ in range(_GROUP):
            word, digit = divmod(word, 85)
            group.append(_ALPHABET[digit])
        out.extend(reversed(group))
    return "".join(out)


def decode(text: str) -> bytes:
    """Decode `text`; raises `InvalidActionError` where it is not Z85."""
    if len(text) % _GROUP:
        raise _bad(text, f"{len(text)} characters is not a multiple of five")
    out = bytearray()
    for start in range(0, len(text), _GROUP):
        word = 0
        for character in text[start : start + _GROUP]:
            digit = _DIGIT.get(character)
            if digit is None:
                raise _bad(text, f"{character!r} is not a Z85 character")
            word = word * 85 + digit
        if word >> 32:
            raise _bad(text, "a group exceeds 32 bits")
        out += word.to_bytes(_WORD, "big")
    return bytes(out)


def _bad(text: str, why: str) -> InvalidActionError:
    return InvalidActionError(
        f"Cannot decode {text[:40]!r} as Z85",
        why=why,
        fix="The deletion vector descriptor is damaged; restore the log entry it came from",
    )
