"""Counts the round trips of clients to a Postgres server, by a proxy in between.

The server ends its answer to each round trip with one ReadyForQuery, however many statements the
client sent in it.
"""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

READY = ord("Z")
HEADER = 5  # the kind of a message and its length


class RoundTrips:
    """A TCP proxy before a server; a context manager."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._count = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for end in (self._listener, *self._ends):
            _close(end)

    def take(self) -> int:
        """The number of round trips since the last call."""
        with self._lock:
            count, self._count = self._count, 0
            return count

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._ends += [client, server]
                for work in (self._ask, self._answer):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        _close(server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        unread = b""
        with suppress(OSError):
            while data := server.recv(65536):
                unread = self._counted(unread + data)
                client.sendall(data)
        _close(client)

    def _counted(self, data: bytes) -> bytes:
        """Count the complete messages; return the rest."""
        while len(data) >= HEADER:
            end = 1 + int.from_bytes(data[1:HEADER])
            if len(data) < end:
                break
            if data[0] == READY:
                with self._lock:
                    self._count += 1
            data = data[end:]
        return data


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
