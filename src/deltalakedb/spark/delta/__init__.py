"""Delta on Spark as a client: its log store and its catalog, which are in our jar, ask a lake."""
