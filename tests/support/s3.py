"""An S3 server for tests: moto in a process of its own, on the loopback interface."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count

import pytest

# It says its port when it serves, and ends with its input: whoever started it may die as it likes.
# S3 decides on a condition and writes in one step; moto does it in two, between which others come.
_SERVER = """
import logging, sys, threading
from contextlib import nullcontext
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
deciding, answer = threading.Lock(), S3Response.key_response
def in_one_step(self, request, *rest):
    conditional = "If-Match" in request.headers or "If-None-Match" in request.headers
    with deciding if conditional else nullcontext():
        return answer(self, request, *rest)
S3Response.key_response = in_one_step
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""
SECRET = "a-very-secret-key"
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server."""

    port: int

    @property
    def storage_options(self) -> dict[str, str]:
        """How to reach it."""
        return {
            "aws_access_key_id": "tester",
            "aws_secret_access_key": SECRET,
            "region": "us-east-1",
            "endpoint_url": f"http://127.0.0.1:{self.port}",
            "allow_http": "true",
        }

    def new_bucket(self, name: str | None = None) -> str:
        """Create a bucket; its name."""
        name = name or f"bucket-{next(_numbers)}"
        connection = HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("PUT", f"/{name}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
        finally:
            connection.close()
        return name


@contextmanager
def running_server() -> Iterator[S3Server]:
    """A server; it is gone afterwards, with all that was in it."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the S3 server ended with {process.wait()}"
            yield S3Server(int(line))
        finally:
            process.stdin.close()
            process.wait(30)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The S3 server of this test session."""
    pytest.importorskip("moto", reason="moto[server] is not installed")
    with running_server() as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> str:
    """The name of an empty bucket."""
    return s3_server.new_bucket()
