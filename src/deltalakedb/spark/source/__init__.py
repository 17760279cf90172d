"""`format("deltalakedb")`: the data source, its options, and streams."""
