"""The import of an existing table, and the adoption of commits of other writers."""
