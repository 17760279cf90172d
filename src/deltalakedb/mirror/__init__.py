"""The copy of the log in `_delta_log/`: publishing, checkpoints, workers, verify and repair.

The database is the authority: this room makes the files follow it, and reports where they differ.
"""
