"""A running service, and a driver of Spark that serves JDBC and Connect, as docs/how-to/bi.md has them."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltalakedb.spark.delta.jar import jar
from deltalakedb.spark.java import java_home

from interop.readers import peer
from support.doc_blocks import BASH

SPARK_BIN = Path(sys.prefix) / "bin"
_STARTS_WITHIN = 180.0


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """The variables of a shell in which the commands of the page work."""
    jar()  # a reason to skip, where it is missing
    return {
        **os.environ,
        "PATH": f"{SPARK_BIN}:{os.environ['PATH']}",
        "JAVA_HOME": str(java_home()),
        "DELTA_JARS": str(peer("Delta on Spark", "delta-spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell in a folder, in which servers run beside other commands."""

    folder: Path
    variables: Mapping[str, str]

    def run(self, script: str, *, timeout: float = 300) -> str:
        """What a script prints; it must succeed."""
        done = subprocess.run(
            [BASH, "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    @contextmanager
    def serving(self, script: str, log: str, *ports: int) -> Iterator[None]:
        """Run a script whose last command listens at ports, until the end of the block."""
        *first, last = _commands(script)
        path = self.folder / log
        with (
            path.open("w") as output,
            subprocess.Popen(
                [BASH, "-euo", "pipefail", "-c", "\n".join([*first, f"exec {last}"])],
                cwd=self.folder,
                env=dict(self.variables),
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            try:
                _await(process, path, ports)
                yield
            finally:
                process.terminate()
                timer = threading.Timer(30, process.kill)
                timer.start()
                process.wait()
                timer.cancel()


def _commands(script: str) -> list[str]:
    return [line for line in re.sub(r"\\\n\s*", "", script).splitlines() if line.strip()]


def _await(process: subprocess.Popen[bytes], log: Path, ports: tuple[int, ...]) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN
    waiting = list(ports)
    while waiting:
        assert process.poll() is None, f"it ended\n{log.read_text(errors='replace')[-5000:]}"
        assert time.monotonic() < deadline, f"not ready\n{log.read_text(errors='replace')[-5000:]}"
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", waiting[0])) == 0:
                waiting.pop(0)
                continue
        time.sleep(0.1)


def beeline(shell: Shell, port: int, statements: str) -> list[dict[str, str]]:
    """The rows of all results of statements, as beeline prints them."""
    (shell.folder / "statements.sql").write_text(statements, "utf-8")
    options = "--silent=true --showHeader=true --outputformat=dsv --delimiterForDSV='|'"
    url = shlex.quote(f"jdbc:hive2://127.0.0.1:{port}")
    out = shell.run(f"beeline -u {url} -n tester {options} -f statements.sql")
    return rows_of(out)
