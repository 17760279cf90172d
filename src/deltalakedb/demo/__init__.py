"""The demo: the main features on SQLite, in under two minutes (`make demo`)."""

from deltalakedb.demo.begin import main

__all__ = ["main"]
