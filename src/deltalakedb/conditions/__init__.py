"""`where=` becomes a predicate, and the predicate the files that can match it."""
