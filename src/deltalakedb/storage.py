"""Where tables lie: locations as URIs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from deltalakedb.errors import ConfigurationError

_SCHEMES = frozenset({"file", "s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss"})


def normalise_location(location: str) -> str:
    """One spelling for a table's location: an absolute URI without a slash at its end."""
    text = location.strip()
    if not text:
        raise ConfigurationError(
            "The location of the table is empty",
            fix="Give a folder or an object store prefix, e.g. file:///data/orders or s3://b/orders",
        )
    parts = urlsplit(text)
    if "://" not in text and not text.startswith("file:"):
        return "file://" + quote(str(Path(text).expanduser().absolute()).rstrip("/") or "/")
    scheme = parts.scheme.lower()
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"The location {text[:200]!r} has the scheme {scheme!r}, which is not supported",
            fix=f"Use one of {', '.join(sorted(_SCHEMES))}, or a plain path",
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"The location {text[:200]!r} names the host {parts.netloc!r}",
                fix="Write file:/// with three slashes before an absolute path",
            )
        return "file://" + quote("/" + unquote(parts.path).strip("/"))
    if not parts.netloc:
        raise ConfigurationError(
            f"The location {text[:200]!r} names no bucket", fix=f"Write {scheme}://bucket/prefix"
        )
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"
