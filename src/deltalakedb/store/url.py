"""Catalog URLs: which engine, where, with which options; and never a secret in what is shown.

Three kinds are understood::

    sqlite:///relative/lake.db        sqlite:////absolute/lake.db
    duckdb:///relative/lake.duckdb    duckdb:////absolute/lake.duckdb
    postgresql://user:password@host:5432/database?sslmode=verify-full&schema=lakes

`${NAME}` and `$NAME` are replaced by environment variables, so that a password need not be written
down. The options of deltalakedb itself (`OWN_OPTIONS`) are taken out; all others reach the driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[^}]*)\}|(?P<plain>[A-Za-z_][A-Za-z0-9_]*))")
_SECRET_OPTIONS = frozenset({"password", "passfile", "sslpassword", "sslkey", "encryption_key"})
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
        """`text` with every secret of this URL blotted out."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def parse_url(url: str, *, environ: Mapping[str, str] | None = None) -> CatalogUrl:
    """Understand `url`, or raise InvalidUrlError that shows an example but no password."""
    if not isinstance(url, str) or not url.strip():
        raise InvalidUrlError("The catalog URL is empty", fix=_EXAMPLES)
    expanded = _expand(url.strip(), os.environ if environ is None else environ)
    scheme, separator, _ = expanded.partition("://")
    engine = _SCHEMES.get(scheme.lower())
    if engine is None or not separator:
        shown = scheme if separator else "no scheme"
        raise InvalidUrlError(
            f"The catalog URL names no engine that deltalakedb knows ({shown[:40]!r})",
            fix=_EXAMPLES,
        )
    return _server(expanded) if engine == "postgres" else _file(expanded, engine)


def _expand(url: str, environ: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["braced"] if match["braced"] is not None else match["plain"]
        if name not in environ:
            raise InvalidUrlError(
                f"The catalog URL uses the environment variable {name!r}, which is not set",
                fix=f"Set {name} or write the value in place; a literal $ is written %24",
            )
        # A value may hold any character; inside the user, password or path it must be quoted.
        text = environ[name]
        return text if match.start() == 0 else quote(text, safe="/:")

    return _VARIABLE.sub(value, url)


def _file(url: str, engine: Engine) -> CatalogUrl:
    body = url.partition("://")[2]
    location, _, query = body.partition("?")
    if not location.startswith("/"):
        raise InvalidUrlError(
            f"{engine}://{location[:80]} names a host, but {engine} is a file",
            fix=f"Write {engine}:///{location} (three slashes for a relative path)",
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
    options = _options(query)
    absolute = os.path.abspath(os.path.expanduser(path))
    return CatalogUrl(
        engine=engine,
        target=absolute,
        display=f"{engine}:///{absolute}",
        timeout=_timeout(options),
        pool_size=_pool_size(options),
        options={k: v for k, v in options.items() if k not in OWN_OPTIONS},
        secrets=tuple(v for k, v in options.items() if k in _SECRET_OPTIONS and v),
    )


def _server(url: str) -> CatalogUrl:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidUrlError(
            "The catalog URL's host or port cannot be read",
            fix="Write postgresql://user:password@host:5432/database; quote special characters "
            "of the password as %XX",
        ) from error
    options = _options(parts.query)
    schema = options.get("schema")
    if schema is not None and not (0 < len(schema.encode()) <= _MAX_IDENTIFIER):
        raise InvalidUrlError(
            f"schema={schema!r} is no name that Postgres accepts",
            fix=f"Use 1 to {_MAX_IDENTIFIER} bytes",
        )
    driver = {k: v for k, v in options.items() if k not in OWN_OPTIONS}
    query = "&".join(f"{k}={quote(v, safe='')}" for k, v in driver.items())
    target = f"postgresql://{parts.netloc}{parts.path}" + (f"?{query}" if query else "")
    user = parts.username or options.get("user", "")
    host = parts.hostname or options.get("host", "")
    shown = f"{quote(user, safe='')}@" if user else ""
    shown += host + (f":{port}" if port else "") + parts.path
    secrets = [unquote(parts.password)] if parts.password else []
    secrets += [parts.password] if parts.password else []
    secrets += [v for k, v in driver.items() if k in _SECRET_OPTIONS and v]
    return CatalogUrl(
        engine="postgres",
        target=target,
        display=f"postgresql://{shown}" + (f"?schema={schema}" if schema else ""),
        schema=schema,
        timeout=_timeout(options),
        pool_size=_pool_size(options),
        options=driver,
        secrets=tuple(dict.fromkeys(secrets)),
    )


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InvalidUrlError(
            "The options after '?' in the catalog URL cannot be read",
            fix="Write them as name=value, joined by '&'",
        ) from error
    return dict(pairs)


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
    if not text.isdigit() or not 0 < int(text) <= 10_000:
        raise InvalidUrlError(
            f"pool_size={text!r} is no number of connections", fix="Use 1 to 10000"
        )
    return int(text)
