"""The copy of the log in `_delta_log/`: publishing, checkpoints, workers, and the way out.

The database is the authority. What is here makes the files follow it, and tells where
they do not.
"""
