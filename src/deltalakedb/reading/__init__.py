"""Rows without Spark: datasets, deletion vectors, column mapping, file systems."""
