"""DELETE, UPDATE, MERGE, replacing writes and OPTIMIZE on Spark."""
