"""The tokens of the service, and the scopes that limit them.

Guarantees:

- A token is compared in constant time, and is in no error, log or repr.
- A scope includes those below it: administer, write, read.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

from deltalakedb.errors import ConfigurationError, DeltaLakeDbError

SHORTEST_TOKEN: Final = 16


class RefusedError(DeltaLakeDbError):
    """A request that is refused with a status of its own."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status
        self.headers = headers or {}


class Scope(IntEnum):
    """The rights of a token."""

    READ = 1
    """Tables by name, and listings of their logs."""
    WRITE = 2
    """Commits, and new tables."""
    ADMINISTER = 3
    """Names, dropped tables, and publishing again."""


@dataclass(frozen=True, slots=True)
class Token:
    """The secret of an owner, which commits are recorded under."""

    secret: str = field(repr=False)
    scope: Scope = Scope.ADMINISTER
    owner: str | None = None

    def __post_init__(self) -> None:
        if len(self.secret) < SHORTEST_TOKEN:
            raise ConfigurationError(
                f"The token is shorter than {SHORTEST_TOKEN} characters",
                why="It could be guessed",
                fix="Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
            )


def parse_tokens(text: str) -> list[Token]:
    """The tokens of a file: a line `scope owner token` each; empty lines and `# …` are skipped."""
    tokens: list[Token] = []
    scopes = {scope.name.lower(): scope for scope in Scope}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[0] not in scopes:
            # Not the line itself: it may be a secret.
            raise ConfigurationError(
                f"Line {number} of the file of tokens is not `scope owner token`",
                fix=f"Write one of {', '.join(scopes)}, a name, and the token, apart by spaces",
            )
        tokens.append(Token(words[2], scopes[words[0]], words[1]))
    if len({token.secret for token in tokens}) < len(tokens):
        raise ConfigurationError(
            "The file of tokens has a token twice", fix="Make one for each owner and scope"
        )
    return tokens


def read_tokens(path: Path) -> list[Token]:
    """The tokens of a file, which only its owner can read."""
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ConfigurationError(
                f"Other users can read the file of tokens {path}", fix=f"Run: chmod 600 {path}"
            )
        return parse_tokens(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The file of tokens {path} cannot be read: {error}") from error


class Access:
    """The tokens of a service; without any it changes nothing."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens = tuple(tokens)

    @property
    def is_open(self) -> bool:
        """Whether any request can change anything."""
        return bool(self._tokens)

    def check(self, sent: str, scope: Scope) -> Token:
        """The token that was sent; RefusedError unless there is one with the scope."""
        if not self._tokens:
            raise RefusedError(
                403,
                "This server is read-only",
                why="It was started without a token",
                fix="Start it with --token, or DELTALAKEDB_TOKEN in its environment",
            )
        secret = sent.encode("utf-8", "replace")
        known: Token | None = None
        for token in self._tokens:
            if hmac.compare_digest(secret, token.secret.encode()):
                known = token
        if known is None:
            raise RefusedError(
                401,
                "The token is missing or wrong",
                fix="Send the one that the server was started with",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if known.scope < scope:
            raise RefusedError(
                403,
                f"The token has the scope {known.scope.name.lower()}, and this needs "
                f"{scope.name.lower()}",
                fix="Send a token with that scope",
            )
        return known


def bearer(header: str) -> str:
    """The token of an Authorization header; empty where there is none."""
    scheme, _, credentials = header.partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else ""
