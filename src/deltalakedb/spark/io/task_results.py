"""Files and errors of tasks, as text that Spark carries to the driver."""

from __future__ import annotations

import base64
import json
import pickle

from deltalakedb.actions import AddFile
from deltalakedb.actions.codec import from_dict, to_dict
from deltalakedb.errors import DeltaLakeDbError


def send_add(add: AddFile) -> str:
    """The action of a file, as text."""
    return json.dumps(to_dict(add))


def receive_add(text: str) -> AddFile:
    """The action that was sent."""
    action = from_dict(json.loads(text))
    assert isinstance(action, AddFile)  # noqa: S101 - nothing else is sent
    return action


def send_error(error: DeltaLakeDbError) -> str:
    """An error, as text."""
    return base64.b64encode(pickle.dumps(error)).decode("ascii")


def receive_error(text: str) -> DeltaLakeDbError:
    """The error that was sent."""
    error: DeltaLakeDbError = pickle.loads(base64.b64decode(text))  # noqa: S301 - our own
    return error
