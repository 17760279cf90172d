"""Translates failures of object stores into StorageError.

obstore has the kind of most failures in its message only: the HTTP status, the number of a system
error. A failure is permanent if only a user can fix it (a missing bucket, wrong
credentials, a folder that is a file); whatever may pass by itself (throttling, time-outs, broken
connections, a full disk) is transient.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from deltalakedb.errors import Option, StorageError, StoragePermissionError, StorageUnavailableError

_STATUS: Final = re.compile(r"\bstatus code: (\d{3})\b")
_SYSTEM: Final = re.compile(r"\(os error (\d+)\)")
_DOCUMENT: Final = re.compile(r"<\?xml|<Error\b")
_DOCUMENT_PARTS: Final = (re.compile(r"<Code>([^<\n]*)"), re.compile(r"<Message>([^<\n]*)"))
_NO_BUCKET: Final = re.compile(
    "NoSuchBucket|ContainerNotFound|specified bucket does not exist", re.IGNORECASE
)
# A redirect without a target: the bucket is in another region.
_WRONG_REGION: Final = re.compile("Received redirect without LOCATION")
# Codes of status 400 for a request that was damaged on the way.
_GARBLED: Final = re.compile(
    "<Code>(?:RequestTimeout|BadDigest|IncompleteBody|XAmzContentSHA256Mismatch|Md5Mismatch)</Code>"
)
# Time-outs, conflicts, short locks, and "slow down".
_PASSING: Final = frozenset({408, 409, 412, 423, 425, 429})
_NOT_IMPLEMENTED: Final = 501
_CONFLICT: Final = 409
_DENIED: Final = frozenset({errno.EPERM, errno.EACCES, errno.EROFS})
_LASTING: Final = frozenset(
    {
        *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
        *(errno.EINVAL, errno.ENOTEMPTY, errno.EXDEV, errno.ENXIO, errno.ENODEV, errno.EILSEQ),
    }
)


def is_missing_bucket(error: Exception) -> bool:
    """Whether the bucket is missing, which is not the same as a missing object."""
    return _NO_BUCKET.search(str(error)) is not None


def is_conflict(error: Exception) -> bool:
    """Whether a store refused a write beside another one: the object is there, or it is not.

    S3 says so of two requests at one moment (and the other may fail), Azure of an object that is
    there. obstore takes both for the latter.
    """
    return _status(error) == _CONFLICT


def message_of(error: Exception) -> str:
    """Return the message of a store in one line; of an XML document its code and message."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    line = text.splitlines()[0]
    document = _DOCUMENT.search(line)
    if document is None:
        return line
    parts = [part[1].strip() for pattern in _DOCUMENT_PARTS if (part := pattern.search(text))]
    return f"{line[: document.start()].rstrip(': ')}{': ' if parts else ''}{': '.join(parts)}"


def translate(error: Exception, what: str, why: str) -> StorageError:
    """Return our error for a failure; `why` is the message of the store without secrets."""
    if _is_denied(error):
        return StoragePermissionError(
            what,
            why=why,
            fix=f"Check the credentials ({Option('storage_options')}, or the environment), and "
            "their permissions",
        )
    if is_missing_bucket(error):
        return StorageError(
            what, why=why, fix="Create the bucket, or correct its name in the location"
        )
    if _is_lasting(error):
        return StorageError(
            what,
            why=why,
            fix=f"Check the location, and the settings of its store ({Option('storage_options')})",
        )
    return StorageUnavailableError(
        what, why=why, fix="Check that the store can be reached from here, and try again"
    )


def _is_denied(error: Exception) -> bool:
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    return (
        isinstance(error, (PermissionDeniedError, UnauthenticatedError))
        or _number(error) in _DENIED
        or _status(error) in (401, 403)
    )


def _is_lasting(error: Exception) -> bool:
    from obstore.exceptions import InvalidPathError, NotSupportedError

    if isinstance(error, (InvalidPathError, NotSupportedError, ValueError)):
        return True
    status = _status(error)
    if status is not None:
        if status < 500:
            return status not in _PASSING and not _GARBLED.search(str(error))
        return status == _NOT_IMPLEMENTED
    return _number(error) in _LASTING or _WRONG_REGION.search(str(error)) is not None


def _status(error: Exception) -> int | None:
    """The HTTP status, if there is one."""
    match = _STATUS.search(str(error))
    return None if match is None else int(match[1])


def _number(error: Exception) -> int | None:
    """The number of a system error."""
    if isinstance(error, OSError):
        return error.errno
    match = _SYSTEM.search(str(error))
    return None if match is None else int(match[1])
