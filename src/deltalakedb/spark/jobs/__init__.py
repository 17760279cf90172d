"""Bulk work of the catalog on the executors of a session."""
