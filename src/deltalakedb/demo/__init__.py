"""The whole story on the embedded default, told in under two minutes: `make demo`."""

from deltalakedb.demo.begin import main

__all__ = ["main"]
