"""Writers and readers that work on one catalog at the same time, and the proof afterwards."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from concurrency.checker import Report, check
from concurrency.journal import Journal, Outcome, Story, read_journals
from concurrency.workload import create_tables
from concurrency.writer import legitimate
from deltalakedb.lake import Lake

from support.fork_server import Child, ForkServer

SLOW_MACHINE = 600
"""Seconds after which a test that waits for its workers is stuck, on whatever machine."""


class Crowd:
    """The workers of one test. Each life of a worker has a journal of its own."""

    def __init__(self, fork_server: ForkServer, folder: Path) -> None:
        self.fork_server = fork_server
        self._folder = folder
        self._stop = folder / "stop"
        self._journals = folder / "journals"
        self._journals.mkdir()
        self._running: dict[str, Child] = {}
        self._lives: dict[str, int] = {}
        self.url = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._running.values():
            child.kill()
            child.wait()

    def settle(
        self, url: str, create: Callable[[Lake, Journal, Path], None] = create_tables
    ) -> None:
        """Create the tables."""
        self.url = url
        with Lake.connect(url, mirror="worker") as lake:
            create(lake, Journal(self._journals / "founder.jsonl"), self._folder)

    def journal(self, name: str) -> Path:
        """A new journal for a worker of that name, who may have lived before."""
        self._lives[name] = self._lives.get(name, 0) + 1
        return self._journals / f"{name}.{self._lives[name]}.jsonl"

    def job(self, run: str, name: str, **options: Any) -> dict[str, Any]:
        """The work of one worker."""
        journal, stop = str(self.journal(name)), str(self._stop)
        return {"run": run, "url": self.url, "journal": journal, "stop": stop, **options}

    def start(self, name: str, job: dict[str, Any]) -> None:
        """Start a worker, or a whole process of them."""
        self._running[name] = self.fork_server.start(job)

    def kill(self, name: str) -> None:
        """End a worker with SIGKILL, and wait until it is gone."""
        child = self._running.pop(name)
        child.kill()
        status = child.wait()
        assert status == -9, f"{name} ended with {status}:\n{self.fork_server.log.read_text()}"

    @property
    def stories(self) -> Sequence[Story]:
        """What the journals say so far."""
        return read_journals(self._journals.iterdir())

    def has_begun(self, name: str) -> bool:
        """Whether the present life of a worker has journalled anything."""
        path = self._journals / f"{name}.{self._lives[name]}.jsonl"
        return path.exists() and path.stat().st_size > 0

    def finish(self) -> None:
        """Let everybody come to an end."""
        self._stop.touch()
        for name, child in self._running.items():
            status = child.wait()
            assert status == 0, f"{name} ended with {status}:\n{self.fork_server.log.read_text()}"
        self._running.clear()

    def acknowledged(self) -> int:
        """How many commits have succeeded so far; quicker than reading all the stories."""
        mark = f'"{Outcome.ACKNOWLEDGED.value}"'.encode()
        return sum(path.read_bytes().count(mark) for path in self._journals.iterdir())

    def wait_for(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Let them work for some time, and longer on a slow machine, until it was enough."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or not enough():
            time.sleep(0.05)
            for name, child in self._running.items():
                assert child.status is None, f"{name} ended:\n{self.fork_server.log.read_text()}"

    def prove(self) -> Report:
        """Check everything; the journals must hold no refusal that Delta's rules do not know."""
        report = check(self.url, list(self._journals.iterdir()))
        for story in self.stories:
            read: dict[str, set[str]] = {}
            for look in story.looks:
                read.setdefault(look.key, set()).update(look.sights)
            for one in story.tries:
                tables = {*one.parts, *read.get(one.key, ())}
                if one.outcome is Outcome.REFUSED and not legitimate(
                    one.operation, one.error, tables
                ):
                    report.problems.append(
                        f"{one.key} ({one.operation}) met {one.error}: {one.message}"
                    )
        first = report.problems[:3]
        assert report.problems == [], f"{len(report.problems)} problems: {first}; {report}"
        return report

    def tell(self, title: str, report: Report) -> None:
        """Say how much was done; `pytest -s` shows it."""
        refusals = ", ".join(f"{what} {n}" for what, n in sorted(report.refusals.items()))
        sys.stdout.write(f"\n{title}: {report}\n    {refusals}\n")
