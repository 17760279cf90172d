"""A TCP proxy before Postgres that loses the answer to a COMMIT, or the COMMIT itself."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self


class Cut(Enum):
    """What becomes of the next thing that a client sends, once the proxy is armed."""

    BEFORE = "before"
    """It never arrives: both ends of the connection are closed."""
    AFTER = "after"
    """It arrives and is answered, but the answer is lost."""
    LATE = "late"
    """The client's end is closed at once; it arrives when `let_go` is called."""


class _Link(threading.Thread):
    """One client's connection."""

    def __init__(self, proxy: "Proxy", client: socket.socket, server: socket.socket) -> None:
        super().__init__(daemon=True)
        self._proxy = proxy
        self._client = client
        self._server = server
        self._answers = threading.Thread(target=self._answer, daemon=True)
        self._cut = threading.Event()
        self._answered = threading.Event()

    def run(self) -> None:
        self._answers.start()
        try:
            while data := self._client.recv(65536):
                cut = self._proxy.disarm()
                if cut is None:
                    self._server.sendall(data)
                    continue
                self._proxy.lost.append(data)
                self._lose(cut, data)
                break
        except OSError:
            pass
        finally:
            self.close()

    def _lose(self, cut: Cut, data: bytes) -> None:
        self._cut.set()
        if cut is Cut.AFTER:
            self._server.sendall(data)
            self._answered.wait()
        elif cut is Cut.LATE:
            _close(self._client)
            self._proxy.released.wait()
            self._server.sendall(data)
            self._answered.wait()

    def _answer(self) -> None:
        try:
            while data := self._server.recv(65536):
                if self._cut.is_set():
                    self._answered.set()
                else:
                    self._client.sendall(data)
        except OSError:
            pass
        finally:
            self._answered.set()
            self.close()

    def close(self) -> None:
        _close(self._client)
        _close(self._server)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        # The other thread may be waiting in recv, which close alone does not end.
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class Proxy:
    """Listens on a port of its own; a context manager."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._armed: Cut | None = None
        self._open = True
        self._links: list[_Link] = []
        self.lost: list[bytes] = []
        """What clients sent when they were cut."""
        self.released = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.released.set()
        _close(self._listener)
        self._thread.join()
        for link in self._links:
            link.close()
            link.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                _close(client)
                continue
            link = _Link(self, client, socket.create_connection(self._target))
            self._links.append(link)
            link.start()

    def arm(self, cut: Cut, *, then_shut: bool = False) -> None:
        """Cut the connection that sends something next, and maybe refuse all that come after."""
        with self._lock:
            self._armed = cut
            self._open = not then_shut

    def disarm(self) -> Cut | None:
        """What to do with what was sent, once."""
        with self._lock:
            armed, self._armed = self._armed, None
            return armed

    def at_commit(self, cut: Cut, *, then_shut: bool = False) -> Callable[[str], None]:
        """A callback for the steps of a commit: cut the first COMMIT."""
        left = [cut]

        def step(name: str) -> None:
            if name == "commit" and left:
                self.arm(left.pop(), then_shut=then_shut)

        return step

    def let_go(self) -> None:
        """Send what is late."""
        self.released.set()

    def open(self) -> None:
        """Accept connections again."""
        self._open = True
