"""Benchmarks: one scenario a file, peers beside us in the same run."""
