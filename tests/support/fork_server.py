"""Processes that can be killed: forked from one that has imported everything, within milliseconds.

`ForkServer` starts a helper process; the helper forks a child for each job, tells when it ends, and
signals it on demand (it alone reaps, so a number is never some other process's). When the helper's
standard input ends, because the test process ended in whatever way, it kills all children and goes.

What children can do is in a module of the tests that has a function `run(job)`.
"""

import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, Self

Job = Mapping[str, Any]

_TESTS = Path(__file__).resolve().parents[1]


class Child:
    """A process that the server forked."""

    def __init__(self, server: "ForkServer", number: int) -> None:
        self._server = server
        self._number = number
        self.status: int | None = None

    def kill(self) -> None:
        """End it with SIGKILL, wherever it is, unless it ended already."""
        self._server.send({"signal": signal.SIGKILL, "to": self._number})

    def pause(self) -> None:
        """Let it hang (SIGSTOP)."""
        self._server.send({"signal": signal.SIGSTOP, "to": self._number})

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._server.send({"signal": signal.SIGCONT, "to": self._number})

    def wait(self) -> int:
        """Its exit status; -9 after SIGKILL."""
        while self.status is None:
            self._server.receive()
        return self.status


class ForkServer:
    """The test's side. Children write what goes wrong to `log`; `jobs` is what they can do."""

    def __init__(self, log: Path, *, jobs: str) -> None:
        self.log = log
        self._children: list[Child] = []
        paths = [_TESTS, *sys.path]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "support.fork_server", jobs],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._process:
            if self._process.stdin:
                self._process.stdin.close()
            self._process.wait()

    def start(self, job: Job) -> Child:
        """Run a job in a process of its own."""
        child = Child(self, len(self._children))
        self._children.append(child)
        self.send({"start": len(self._children) - 1, "job": job})
        return child

    def run(self, job: Job) -> int:
        """Run a job to its end; its exit status."""
        return self.start(job).wait()

    def send(self, message: Job) -> None:
        """Tell the helper to do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def receive(self) -> None:
        """Wait for the end of any child."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the helper ended:\n{self.log.read_text()}"
        number, status = json.loads(line)
        self._children[number].status = status


# --- the helper's side --------------------------------------------------------------------


def _fork(jobs: ModuleType, job: Job, selector: selectors.BaseSelector) -> int:
    pid = os.fork()
    if pid:
        return pid
    # Nothing of the helper may live on here: neither its pipes nor its handlers.
    selector.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    status = 1
    try:
        jobs.run(job)
        status = 0
    except BaseException:  # noqa: BLE001 - the process ends here, and says why
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _reap(pids: dict[int, int]) -> None:
    for pid in list(pids):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            os.write(1, json.dumps([pids.pop(pid), os.waitstatus_to_exitcode(status)]).encode())
            os.write(1, b"\n")


def _on_child(number: int, frame: FrameType | None) -> None:
    """Wake the selector, through the wakeup descriptor."""


def main() -> None:
    """Obey the lines of standard input until it ends."""
    jobs = importlib.import_module(sys.argv[1])  # once, for all children
    # So does pyarrow import pandas with the first array it makes, which takes a second.
    with suppress(ImportError):
        importlib.import_module("pyarrow").array([1])
        importlib.import_module("adbc_driver_postgresql.dbapi")
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, _on_child)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test's process decides
    os.set_blocking(0, False)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    pids: dict[int, int] = {}
    unread = b""
    while True:
        for key, _ in selector.select():
            data = os.read(key.fd, 65536)
            if key.fd == woken:
                _reap(pids)
                continue
            if not data:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                return
            *lines, unread = (unread + data).split(b"\n")
            for message in map(json.loads, lines):
                if "start" in message:
                    pids[_fork(jobs, message["job"], selector)] = message["start"]
                    continue
                for pid, number in pids.items():
                    if number == message["to"]:
                        with suppress(ProcessLookupError):
                            os.kill(pid, message["signal"])


if __name__ == "__main__":
    main()
