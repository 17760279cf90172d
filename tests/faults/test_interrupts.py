"""Ctrl-C at any moment: no place of a pool, transaction or lock is lost, and no commit."""

import dis
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import cache
from os import environ
from pathlib import Path
from time import monotonic, sleep
from types import CodeType, FrameType
from typing import Any
from uuid import uuid4

import pytest

import deltalakedb
from deltalakedb.actions import AddFile
from deltalakedb.store import Store
from deltalakedb.store.arrow import FileQuery
from deltalakedb.store.dialect import Take
from deltalakedb.store.relations import TXN_ACTIONS
from deltalakedb.store.url import Engine
from store.test_connections import with_options

from support.store import OpenStore, commit, new_table

HERE = Path(__file__).parent
ROOMS = (str(Path(deltalakedb.__file__).parent), str(HERE))
POOL_SIZE = 2
STRIDE = 1 if environ.get("DELTALAKEDB_SOAK") == "1" else 2
"""Of the instructions, the short form takes each second one."""

# --- at every instruction -----------------------------------------------------------------

# Where the interpreter looks for signals: when a function begins or goes on, after a call, and
# where a loop begins again.
ARRIVALS = {dis.opmap[name] for name in ("RESUME", "JUMP_BACKWARD") if name in dis.opmap}
CALLS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX") if name in dis.opmap}


def _can_arrive(code: CodeType, before: int | None, here: int) -> bool:
    if code.co_code[here] in ARRIVALS:
        return True
    # What arrives after a call is raised by the call, and so belongs to the same `with` or `try`.
    return (
        before is not None
        and code.co_code[before] in CALLS
        and _handler(code, before) == _handler(code, here)
    )


@cache
def _handler(code: CodeType, offset: int) -> int | None:
    entries: Any = dis.Bytecode(code)
    found = [e.target for e in entries.exception_entries if e.start <= offset < e.end]
    return found[-1] if found else None


class Interrupt:
    """Raises KeyboardInterrupt at the n-th instruction of the package where a signal can arrive."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""
        self._before: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(ROOMS[0]):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._before.get(frame)
            self._before[frame] = frame.f_lasti
            if _can_arrive(frame.f_code, before, frame.f_lasti):
                self.left -= 1
                if self.left == 0:
                    self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                    self.forget_frames()
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self

    def forget_frames(self) -> None:
        """Let go of what the frames hold; they refer to this object."""
        self._before.clear()


def interrupted(work: Callable[[], object], number: int) -> str:
    """Where the work was interrupted; nowhere if it had ended before."""
    interrupt = Interrupt(number)
    before = sys.gettrace()
    try:
        sys.settrace(interrupt)
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        interrupt.forget_frames()
    return interrupt.where


def is_whole(store: Store, table_id: str) -> None:
    """Every place of the pool can be had, the turn to publish, and the turn to write."""
    give_up = monotonic() + 30
    while not can_take_turn(store, table_id):
        assert monotonic() < give_up, "the turn is held by nobody, and cannot be had"
        sleep(0.01)
    with ExitStack() as held:
        for _ in range(POOL_SIZE):
            held.enter_context(store.read())
    with store.write() as session:
        store.tables(session)


def can_take_turn(store: Store, table_id: str) -> bool:
    """Whether the turn is free; a server frees it once it has seen that its connection ended."""
    with store.dialect.turn(table_id, "publish") as turn:
        if turn is None:
            return False
        assert store.dialect.engine != "postgres" or turn.session is not None
        return True


def write(store: Store, table_id: str) -> None:
    with store.write() as session:
        store.lock_head(session, table_id)


def fail(store: Store, table_id: str) -> None:
    try:
        with store.write() as session:
            store.lock_head(session, table_id)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


def take(store: Store, table_id: str) -> None:
    wanted = Take(table_id, 0, 64, table_id, ["a"], unless_drifted=True)
    try:
        with store.begin_commit(wanted) as session:
            assert session.take_head(wanted).version == 1
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


def insert(store: Store, table_id: str) -> None:
    with store.write() as session, session.batch():
        session.insert(TXN_ACTIONS, [(table_id, 1, str(uuid4()), 1, None, None)])


def ask(store: Store, table_id: str) -> None:
    store.dialect.ask(lambda session: session.one("head", table_id=table_id))


def list_files(store: Store, table_id: str) -> None:
    text = "SELECT path FROM dl_active_files WHERE table_id = :table_id"
    query = FileQuery(text, ("path",), {"table_id": table_id})
    with closing(store.dialect.list_files(query)) as batches:
        for _ in batches:
            pass


def take_turn(store: Store, table_id: str) -> None:
    with store.dialect.turn(table_id, "publish") as turn:
        assert turn is not None


def wait_for_publisher(store: Store, table_id: str) -> None:
    store.dialect.wait_for_publisher(table_id, 0, 1.0)


# A connection that is interrupted while it is being made is closed when it is collected.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "work", [write, fail, take, insert, ask, list_files, take_turn, wait_for_publisher]
)
def test_an_interrupt_at_any_instruction_leaves_the_pool_whole(
    work: Callable[[Store, str], None], catalog_url: str, open_store: OpenStore
) -> None:
    store = open_store(with_options(catalog_url, pool_size=POOL_SIZE, timeout=2))
    table_id = new_table(store)
    points: list[str] = []
    # With a connection that is there already, and with one that has to be made.
    for is_new in (False, True):
        number = 1 - STRIDE
        while True:
            if is_new:
                discard(store)
            number += STRIDE
            where = interrupted(lambda: work(store, table_id), number)
            if not where:
                break
            points.append(where)
            is_whole(store, table_id)
    assert len(points) > 10 / STRIDE, points
    store.close()
    with pytest.raises(deltalakedb.errors.CatalogError, match="closed"):
        is_whole(store, table_id)


def discard(store: Store) -> None:
    dialect: Any = store.dialect
    dialect._pool.discard_idle()
    dialect._listings.discard_idle()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupted_close_can_be_repeated(
    catalog_url: str, open_store: OpenStore, engine: Engine
) -> None:
    number = 0
    while True:
        number += 1
        store = open_store(with_options(catalog_url, timeout=2))
        is_whole(store, "none")
        where = interrupted(store.close, number)
        store.close()
        dialect: Any = store.dialect
        assert dialect._pool.in_use == 0
        if engine == "duckdb":  # the file is open nowhere
            assert not dialect._instance.users
        if not where:
            break
    assert number > 10


def test_a_transaction_that_only_a_traceback_holds_ends_with_close(
    catalog_url: str, open_store: OpenStore
) -> None:
    store = open_store(with_options(catalog_url, timeout=2))
    other = open_store(with_options(catalog_url, timeout=2))
    table_id = new_table(store)
    left = store.write()
    session = left.__enter__()
    store.lock_head(session, table_id)
    store.close()
    write(other, table_id)


def test_a_result_whose_closing_was_interrupted_is_closed_again(
    catalog_url: str, open_store: OpenStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver counts the second time as one too many."""
    if engine != "postgres":
        pytest.skip("only Postgres has listings by another driver")
    store = open_store(with_options(catalog_url, timeout=2))
    table_id = new_table(store)
    commit(store, table_id, [AddFile("a", {}, 5, 1, data_change=True)])
    text = "SELECT path FROM dl_active_files WHERE table_id = :table_id"
    batches = store.dialect.list_files(FileQuery(text, ("path",), {"table_id": table_id}))
    next(batches)
    from adbc_driver_manager import dbapi

    closed = dbapi.Cursor.close

    def close(cursor: dbapi.Cursor) -> None:
        closed(cursor)
        raise RuntimeError("Underflow in closing this AdbcStatement")

    with monkeypatch.context() as patched:
        patched.setattr(dbapi.Cursor, "close", close)
        batches.close()
    list_files(store, table_id)


# --- at random moments --------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "t"
    made.mkdir()
    return made


@pytest.mark.timeout(300)
def test_interrupts_at_random_moments_lose_nothing(
    catalog_url: str, folder: Path, engine: Engine
) -> None:
    interrupt_at_random(catalog_url, folder, interrupts=25, seed=len(engine))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_thousand_interrupts_at_random_moments(catalog_url: str, folder: Path) -> None:
    interrupt_at_random(catalog_url, folder, interrupts=700, seed=1)


def interrupt_at_random(url: str, folder: Path, *, interrupts: int, seed: int) -> None:
    arguments = [url, str(folder), str(interrupts), str(seed)]
    done = subprocess.run(
        [sys.executable, str(HERE / "interrupted.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["interrupts"] >= interrupts
    # Files of appends that did not happen are orphans, which vacuum deletes.
    with deltalakedb.connect(url) as lake:
        table = lake.table("t")
        rows = table.snapshot().to_arrow().num_rows
        table.vacuum(retention_hours=0, allow_short_retention=True)
        live = table.snapshot().files()["path"].to_pylist()
        assert sorted(live) == sorted(path.name for path in folder.glob("*.parquet"))
        assert table.snapshot().to_arrow().num_rows == rows
