"""The queue of SQLite writers: one at the front, and no way to block the others for ever."""

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from deltalakedb.store import Store, sqlite_queue
from deltalakedb.store.sqlite_queue import Place, place_in_queue

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")

HOLDING = """
import sys
from deltalakedb.store.sqlite_queue import place_in_queue

with place_in_queue(sys.argv[1]) as place:
    place.wait(60)
    print(place.is_first, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def other_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process at the front of the queue."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lake.db-queue"


def is_free(path: Path) -> bool:
    """Whether nobody is in front, or not for long."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        # Without a thread that could wait nobody does.
        with place_in_queue(str(path)) as place:
            if place.is_waiting:
                place.wait(20)
            if place.is_first:
                return True
        time.sleep(0.01)
    return False


def is_taken(path: Path) -> bool:
    with place_in_queue(str(path)) as place:
        place.wait(0.05)
        return not place.is_first


def test_one_thread_at_a_time_is_in_front(path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def stand() -> None:
        for _ in range(20):
            with place_in_queue(str(path)) as place:
                place.wait(60)
                assert place.is_first
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=stand) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert max(most) == 1


def test_processes_wait_for_each_other(path: Path) -> None:
    with other_process(path) as process:
        assert is_taken(path)
        assert process.stdin is not None
        process.stdin.write("leave\n")
        process.stdin.flush()
        assert is_free(path)


def test_the_place_of_a_killed_process_is_free(path: Path) -> None:
    with other_process(path) as process:
        process.kill()
        assert is_free(path)


def test_a_place_that_is_collected_is_free(path: Path) -> None:
    place = Place(str(path))
    place.wait(20)
    assert place.is_first
    assert is_taken(path)
    del place
    gc.collect()
    assert is_free(path)


def test_whoever_gave_up_does_not_come_to_the_front_later(path: Path) -> None:
    with place_in_queue(str(path)) as place:
        place.wait(20)
        assert place.is_first
        for _ in range(3):
            assert is_taken(path)
    assert is_free(path)


def test_a_forked_child_has_no_place(path: Path) -> None:
    read, write = os.pipe()
    with place_in_queue(str(path)) as place:
        place.wait(20)
        assert place.is_first
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(0 if is_taken(path) or is_free(path) else 1)
    try:
        assert is_free(path)
    finally:
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0
        os.close(read)


def test_where_no_file_can_be_made_there_is_no_queue(path: Path) -> None:
    with place_in_queue(str(path / "missing")) as place:
        place.wait(60)
        assert not place.is_waiting
        assert not place.is_first


def test_a_stopped_process_in_front_costs_a_limited_number_of_threads(
    path: Path,
) -> None:
    before = threading.active_count()
    with other_process(path) as process:
        process.send_signal(signal.SIGSTOP)
        for _ in range(2 * sqlite_queue._MOST_THREADS):
            with place_in_queue(str(path)) as place:
                place.wait(0.001)
                assert not place.is_first
        assert threading.active_count() - before <= sqlite_queue._MOST_THREADS
    assert is_free(path)


def test_a_place_is_not_lost_by_a_look(path: Path) -> None:
    with other_process(path) as process, place_in_queue(str(path)) as place:
        place.wait(0.05)
        assert place.is_waiting
        process.kill()
        place.wait(20)
        assert place.is_first
        assert is_taken(path)


def test_writers_pass_a_stopped_process_in_front(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    with other_process(tmp_path / "lake.db-queue") as process:
        process.send_signal(signal.SIGSTOP)
        one, two = Store.open(url), Store.open(url)
        done = threading.Event()

        def write() -> None:
            with two.write():
                done.set()

        thread = threading.Thread(target=write)
        with one.write():
            thread.start()
            assert not done.wait(0.1)
        assert done.wait(20)
        thread.join()
        one.close()
        two.close()


def interrupt_when_queueing() -> None:
    """Interrupt the main thread while it waits for the write lock."""
    main = threading.main_thread().ident
    assert main is not None
    while not any(
        frame.f_code.co_name == "_queue_to_write"
        for frame, _ in traceback.walk_stack(sys._current_frames()[main])
    ):
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("in_front", [True, False])
def test_an_interrupt_ends_the_wait(tmp_path: Path, in_front: bool) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(closing(Store.open(f"sqlite:///{tmp_path / 'lake.db'}")))
        with store.write():
            pass  # now the file is there
        queue = tmp_path / "lake.db-queue"
        other = stack.enter_context(closing(sqlite3.connect(tmp_path / "lake.db")))
        other.execute("BEGIN IMMEDIATE")
        elsewhere = tmp_path / "another-queue"
        first = stack.enter_context(place_in_queue(str(elsewhere if in_front else queue)))
        first.wait(20)
        # A process in the background may have been started to ignore it.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        stack.callback(signal.signal, signal.SIGINT, before)
        interrupting = threading.Thread(target=interrupt_when_queueing, daemon=True)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            store.write().__enter__()
        interrupting.join()
        first.leave()
        assert is_free(queue)
        other.rollback()
        with store.write():
            pass
