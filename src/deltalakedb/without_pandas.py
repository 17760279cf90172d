"""Keep pandas from being imported where nobody asked for it: that takes more than a second.

pyarrow imports it with the first array that it makes, and DuckDB with the first query, only to look
whether a value is one of its kinds. What has been imported stays.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _WithoutPandas(threading.local):
    """Inside `with`, this thread cannot begin to import pandas; if it is there, it stays."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def find_spec(self, fullname: str, *_: object) -> None:
        """The import system's question to everyone in sys.meta_path."""
        if self.depth and fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Inside, pandas may be imported again."""
        depth, self.depth = self.depth, 0
        try:
            yield
        finally:
            self.depth = depth


without_pandas = _WithoutPandas()
sys.meta_path.insert(0, without_pandas)
