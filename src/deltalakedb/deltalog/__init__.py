"""The file format: names, checkpoints, and the state that the files of a `_delta_log` add up to.

Everything that parses is a pure function of bytes; only `listing` and `fetch` touch a store.
"""
