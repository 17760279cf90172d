"""A log comes in: import of an existing table, and adoption of commits that another writer made."""
