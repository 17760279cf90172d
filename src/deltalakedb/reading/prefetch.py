"""Preparing what comes next while the consumer is busy, within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TypeVar

from deltalakedb.threads import Threads

T = TypeVar("T")


def read_ahead(sources: Iterator[Iterator[T]], ahead: int) -> Iterator[T]:
    """Everything from each source in turn, while the next item of `ahead` sources is prepared.

    A worker prepares one item and is free again: nobody who stops in the middle leaves one behind
    that waits for ever.
    """
    pool = Threads(ahead, thread_name_prefix="deltalakedb-read")
    try:
        waiting: deque[tuple[Iterator[T], Future[T | None]]] = deque()
        while True:
            while len(waiting) < ahead and (source := next(sources, None)) is not None:
                waiting.append((source, pool.submit(next, source, None)))
            if not waiting:
                return
            source, future = waiting[0]
            item = future.result()
            if item is None:
                waiting.popleft()
                continue
            waiting[0] = (source, pool.submit(next, source, None))
            yield item
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
