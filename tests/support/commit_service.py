"""`deltalakedb serve` in a process of its own; it can be killed, and started again at its port."""

import os
import secrets
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from deltalakedb.spark.delta.embedded import Service


class CommitService:
    """The service of a catalog; its address and token stay the same through restarts."""

    def __init__(self, catalog: str) -> None:
        self._catalog = catalog
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.token = secrets.token_urlsafe()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service(self) -> Service:
        """Where it is, for a session of Spark."""
        return Service(f"http://127.0.0.1:{self._port}", self.token)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "deltalakedb", "serve", "--catalog", self._catalog]
        self._process = subprocess.Popen(
            [*command, "--port", str(self._port)],
            env={**os.environ, "DELTALAKEDB_TOKEN": self.token},
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=5):
                    return
            except OSError:
                assert self._process.poll() is None, "the service ended"
                assert time.monotonic() < deadline, "the service does not answer"
                time.sleep(0.05)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
