"""A client of the operations page, and the page for as long as a test needs it."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from deltalakedb.lake import Lake
from deltalakedb.service import OperationsPage


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        assert self.headers["Content-Type"] == "application/json"
        return json.loads(self.text)


class Client:
    def __init__(self, address: str) -> None:
        self.host = urlsplit(address).netloc

    def __call__(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> Reply:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **query: str | int) -> Any:
        reply = self(f"{path}?{urlencode(query)}" if query else path)
        assert reply.status == 200, reply.text
        return reply.json


@contextmanager
def serving(lake: Lake, **options: Any) -> Iterator[Client]:
    with OperationsPage(lake, **options) as page:
        yield Client(page.address)
