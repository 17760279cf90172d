"""Catalog URLs: engine, place and options. No error or display shows a secret.

There are three kinds::

    sqlite:///relative/lake.db        sqlite:////absolute/lake.db
    duckdb:///relative/lake.duckdb    duckdb:////absolute/lake.duckdb
    postgresql://user:password@host:5432/database?sslmode=verify-full&schema=lakes

`${NAME}` and `$NAME` are replaced by environment variables, so that a password need not be written
down. A variable is the whole URL, or the plain value of one part of it: special characters in it
need no quoting. The driver gets all options but those of deltalakedb itself (`OWN_OPTIONS`).

`psycopg.conninfo` does not parse them: its errors quote passwords, it takes the halves of an
unquoted password for a host and a port, it refuses `schema=`, and URLs are parsed before a missing
driver is reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from deltalakedb.errors import InvalidUrlError

Engine = Literal["postgres", "sqlite", "duckdb"]

_SCHEMES: dict[str, Engine] = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "sqlite": "sqlite",
    "duckdb": "duckdb",
}
OWN_OPTIONS = frozenset({"schema", "timeout", "pool_size"})
_EXAMPLES = (
    "Use sqlite:///lake.db, duckdb:///lake.duckdb or postgresql://user@host:5432/database "
    "(four slashes for an absolute file path)"
)
_QUOTE_IT = (
    "Write postgresql://user:password@host:5432/database; special characters of the password "
    "are quoted (/ as %2F, # as %23, ? as %3F, @ as %40), or come from a variable: ${NAME}"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,39}")
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[^}]*)\}|(?P<plain>[A-Za-z_][A-Za-z0-9_]*))")
_CONVENTIONAL_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
# libpq takes several hosts, to fail over: each a name, an address or [IPv6], with or without port.
_HOST = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]*)?")
_SECRET_OPTION = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_MAX_IDENTIFIER = 63


@dataclass(frozen=True, slots=True)
class CatalogUrl:
    """A parsed URL. `target` is a file path, or for Postgres the conninfo URL with its secrets."""

    engine: Engine
    target: str = field(repr=False)
    display: str
    schema: str | None = None
    timeout: float = 30.0
    pool_size: int = 16
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redact(self, text: str) -> str:
        """`text` with every secret of this URL replaced by `***`."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def parse_url(url: str, *, environ: Mapping[str, str] | None = None) -> CatalogUrl:
    """Parse `url`; InvalidUrlError shows an example but no password."""
    text: object = url
    if not isinstance(text, str):
        raise InvalidUrlError(
            f"The catalog URL is no text but of type {type(text).__name__}", fix=_EXAMPLES
        )
    if not url.strip():
        raise InvalidUrlError("The catalog URL is empty", fix=_EXAMPLES)
    expanded = _expand(url.strip(), os.environ if environ is None else environ).strip()
    scheme, separator, _ = expanded.partition("://")
    engine = _SCHEMES.get(scheme.lower())
    if engine is None or not separator:
        # The error has the text before "://" only if that is a scheme, and no half of a password.
        prefix = repr(scheme) if separator and _SCHEME.fullmatch(scheme) else "no scheme"
        raise InvalidUrlError(
            f"The catalog URL names no engine that deltalakedb knows ({prefix})", fix=_EXAMPLES
        )
    return _server(expanded) if engine == "postgres" else _file(expanded, engine)


# --- environment variables ----------------------------------------------------------------


def _expand(url: str, environ: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["braced"] if match["braced"] is not None else match["plain"]
        if name not in environ:
            raise _unset(match, url)
        if match.start() == 0:
            return environ[name]
        safe = _safe_characters(url, match)
        return quote(environ[name], safe=safe, errors="surrogateescape")

    return _VARIABLE.sub(value, url)


def _unset(match: re.Match[str], url: str) -> InvalidUrlError:
    name = match["braced"] or match["plain"] or ""
    # `pa$sword` is more likely a password than a variable: then its rest is not for the message.
    clear = match["braced"] is not None or _CONVENTIONAL_NAME.fullmatch(name)
    if not clear and _part(url, match) in ("user", "options"):
        return InvalidUrlError(
            "The catalog URL has a $ that names no environment variable in its user, password or "
            "options",
            fix="Write a literal $ as %24; a variable as ${NAME}",
        )
    return InvalidUrlError(
        f"The catalog URL uses the environment variable {name!r}, which is not set",
        fix=f"Set {name or 'it'}, or write the value in place; a literal $ is written %24",
    )


def _safe_characters(url: str, match: re.Match[str]) -> str:
    """The characters of a value that stay unquoted: a file has folders, a host a port."""
    is_file = not url.lower().startswith("postgres")
    return {"user": "", "host": ":,[]", "path": "/" if is_file else "", "options": ""}[
        _part(url, match)
    ]


def _part(url: str, match: re.Match[str]) -> Literal["user", "host", "path", "options"]:
    before = url[: match.start()].partition("://")[2]
    after = re.split(r"[/?]", url[match.end() :], maxsplit=1)[0]
    if "?" in before:
        return "options"
    if "/" in before:
        return "path"
    return "user" if "@" in after else "host"


# --- files --------------------------------------------------------------------------------


def _file(url: str, engine: Engine) -> CatalogUrl:
    body = url.partition("://")[2]
    location, _, query = body.partition("?")
    if not location.startswith("/"):
        raise InvalidUrlError(
            f"The {engine}:// catalog URL names a host, but {engine} is a file",
            fix=f"Write {engine}:///folder/lake.db, with three slashes for a relative path and "
            "four for an absolute one",
        )
    path = unquote(location[1:])
    if not path or path.endswith("/"):
        raise InvalidUrlError(f"{engine}://{location} names no file", fix=_EXAMPLES)
    if path == ":memory:":
        raise InvalidUrlError(
            f"{engine}:///:memory: would be forgotten with its connection",
            why="The catalog is the only record of what your tables contain",
            fix=f"Name a file, for a test one in a temporary folder: {engine}:////tmp/lake.db",
        )
    try:
        absolute = str(Path(path).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidUrlError(
            f"{engine}://{location} names no file", why=str(error), fix=_EXAMPLES
        ) from error
    options = _options(query)
    if "schema" in options:
        raise InvalidUrlError(
            f"schema=… means nothing to {engine}",
            why="Only Postgres keeps several catalogs in one database",
            fix="Leave it out; use one file for each catalog",
        )
    return CatalogUrl(
        engine=engine,
        target=absolute,
        display=f"{engine}:///{absolute}",
        timeout=_timeout(options),
        pool_size=_pool_size(options),
        options={k: v for k, v in options.items() if k not in OWN_OPTIONS},
        secrets=_secrets(options),
    )


# --- servers ------------------------------------------------------------------------------


def _server(url: str) -> CatalogUrl:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    # Raised outside the handler: Python's own message would quote the password.
    if parts is None:
        raise InvalidUrlError("The catalog URL's host cannot be read", fix=_QUOTE_IT)
    login, _, hosts = parts.netloc.rpartition("@")
    if (
        not all(_HOST.fullmatch(host) for host in hosts.split(","))
        or parts.fragment
        or re.search("[/@]", parts.path[1:])
    ):
        raise InvalidUrlError(
            "The host, port or database of the catalog URL is malformed", fix=_QUOTE_IT
        )
    options = _options(parts.query)
    schema = options.get("schema")
    if schema is not None and ("\0" in schema or not 0 < len(schema.encode()) <= _MAX_IDENTIFIER):
        raise InvalidUrlError(
            f"schema={schema!r} is no name that Postgres accepts",
            fix=f"Use 1 to {_MAX_IDENTIFIER} bytes",
        )
    driver = {k: v for k, v in options.items() if k not in OWN_OPTIONS}
    query = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in driver.items())
    user, _, password = login.partition(":")
    user = user or quote(options.get("user", ""), safe="")
    hosts = hosts or options.get("host", "")
    display = (f"{user}@" if user else "") + hosts + parts.path
    return CatalogUrl(
        engine="postgres",
        target=f"postgresql://{parts.netloc}{parts.path}" + (f"?{query}" if query else ""),
        display=f"postgresql://{display}" + (f"?schema={quote(schema)}" if schema else ""),
        schema=schema,
        timeout=_timeout(options),
        pool_size=_pool_size(options),
        options=driver,
        secrets=_secrets(driver, password),
    )


# --- options ------------------------------------------------------------------------------


def _options(query: str) -> dict[str, str]:
    try:
        # In a catalog URL + is itself, as for libpq; only HTML forms write a space so.
        pairs = parse_qsl(
            query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=bool(query)
        )
    except ValueError:
        pairs = None
    if pairs is None or any(not name for name, _ in pairs):
        raise InvalidUrlError(
            "The options after '?' in the catalog URL cannot be read",
            fix="Write them as name=value, joined by '&'; a '?' elsewhere is written %3F",
        )
    return dict(pairs)


def _secrets(options: Mapping[str, str], password: str = "") -> tuple[str, ...]:
    secrets = [password, unquote(password)]
    for name, value in options.items():
        if _SECRET_OPTION.search(name):
            secrets += [value, quote(value, safe="")]
    # The longest first: a secret may be part of another one.
    return tuple(sorted({text for text in secrets if text}, key=len, reverse=True))


def _timeout(options: Mapping[str, str]) -> float:
    text = options.get("timeout", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise InvalidUrlError(
            f"timeout={text!r} is no number of seconds", fix="Use a number, e.g. timeout=30"
        )
    return seconds


def _pool_size(options: Mapping[str, str]) -> int:
    text = options.get("pool_size", "16")
    if not text.isdecimal() or not 0 < int(text[:6]) <= 10_000:
        raise InvalidUrlError(
            f"pool_size={text!r} is no number of connections", fix="Use 1 to 10000"
        )
    return int(text)
