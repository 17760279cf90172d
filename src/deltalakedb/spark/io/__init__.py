"""Scans and writes: how Spark reads and stages the files of a table."""
