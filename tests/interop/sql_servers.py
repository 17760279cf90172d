"""Servers that run beside the commands of a page: our service, and drivers of Spark."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.delta.jar import jar
from deltalakedb.spark.java import java_home
from interop.readers import Unavailable, peer

from support.doc_blocks import BASH

_STARTS_WITHIN = 180.0


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def variables(**more: str) -> dict[str, str]:
    """The variables of a shell in which the commands of the pages work; else a skip."""
    try:
        jar()
        delta = peer("Delta on Spark", "delta-spark")
        java = java_home()
    except (DeltaLakeDbError, Unavailable) as missing:
        pytest.skip(str(missing))
    spark = Path(pyspark.__file__).parent / "bin"
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{spark}:{os.environ['PATH']}",
        "JAVA_HOME": str(java),
        "DELTA_JARS": str(delta),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


@dataclass(frozen=True, slots=True)
class Shell:
    """A folder and variables, in which servers run beside other commands."""

    folder: Path
    variables: Mapping[str, str]

    def run(self, *command: str) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=500,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def script(self, text: str) -> str:
        """What a script prints; it must succeed."""
        return self.run(BASH, "-euo", "pipefail", "-c", text)

    @contextmanager
    def serving(self, script: str, name: str, *ports: int) -> Iterator[None]:
        """Run a script whose last command listens at ports, until the end of the block."""
        lines = re.sub(r"\\\n\s*", "", script).strip().splitlines()
        log = self.folder / f"{name}.log"
        text = "\n".join([*lines[:-1], f"exec {lines[-1]}"])
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [BASH, "-euo", "pipefail", "-c", text],
                cwd=self.folder,
                env=dict(self.variables),
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            try:
                _await(process, log, ports)
                yield
            finally:
                process.terminate()
                timer = threading.Timer(30, process.kill)
                timer.start()
                process.wait()
                timer.cancel()


def _await(process: subprocess.Popen[bytes], log: Path, ports: tuple[int, ...]) -> None:
    """Wait until something listens at each port."""
    deadline = time.monotonic() + _STARTS_WITHIN
    for port in ports:
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            ended = process.poll() is not None or time.monotonic() > deadline
            assert not ended, f"no server at {port}\n{log.read_text(errors='replace')[-5000:]}"
            time.sleep(0.1)
