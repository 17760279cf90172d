"""A real PgBouncer in front of a test server, which passes sessions on between transactions."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from support.postgres_server import SUPERUSER, PostgresServer

START_SECONDS = 30.0


def find_pgbouncer() -> str | None:
    """The program, where it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def why_no_pgbouncer() -> str:
    """Why tests with it cannot run here; nothing where they can."""
    return "" if find_pgbouncer() else "pgbouncer is not installed"


class PgBouncer:
    """A context manager; `pool_mode` is that of PgBouncer, `size` its sessions for a database."""

    def __init__(
        self, server: PostgresServer, *, pool_mode: str = "transaction", size: int = 2
    ) -> None:
        self._server = server
        self._folder = server.folder / f"pgbouncer-{pool_mode}-{size}"
        self._folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        (self._folder / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"* = host={server.folder} port={server.port} user={SUPERUSER}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {pool_mode}\ndefault_pool_size = {size}\n"
            f"max_client_conn = 200\nlogfile = {self._folder}/log\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = find_pgbouncer()
        assert program is not None
        account = self._server._account
        account.own(self._folder)
        self._process = account.spawn(
            program,
            "-q",
            str(self._folder / "pgbouncer.ini"),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            log=self._folder / "output",
        )
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                assert self._process.poll() is None, self.log
                assert time.monotonic() < end, self.log
                time.sleep(0.02)
            else:
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """What it has written so far."""
        files = (Path(self._folder, name) for name in ("log", "output"))
        return "\n".join(file.read_text() for file in files if file.exists())

    def url(self, dbname: str) -> str:
        """URL of a database of the server, through this pooler."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"
