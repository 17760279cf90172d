"""A TCP proxy in front of Postgres that loses a connection at the worst moment."""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

Moment = Literal["never", "before", "after"]
COMMIT = b"COMMIT\0"  # the whole statement, not a word of READ COMMITTED


class CuttingProxy:
    """Passes bytes on, and cuts the connection around a COMMIT when told to.

    - `before`: the server never hears of the COMMIT;
    - `after`: the server has committed, and its answer is lost.
    """

    def __init__(self, port: int) -> None:
        self.cut: Moment = "never"
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _close(self._listener)
        for one in self._sockets:
            _close(one)
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                committing = threading.Event()
                self._start(self._pass_on, client, server, committing)
                self._start(self._pass_back, client, server, committing)

    def _pass_on(
        self, client: socket.socket, server: socket.socket, committing: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if COMMIT in data and self.cut == "before":
                    break
                if COMMIT in data and self.cut == "after":
                    committing.set()
                server.sendall(data)
        _close(client)
        _close(server)

    def _pass_back(
        self, client: socket.socket, server: socket.socket, committing: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            # The client was waiting: what comes after its COMMIT is the answer to it.
            while (data := server.recv(65536)) and not committing.is_set():
                client.sendall(data)
        _close(client)
        _close(server)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
