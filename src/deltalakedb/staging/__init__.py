"""Rows become data files: fitted to the table's schema, checked, written with exact statistics.

Nothing that is staged is visible: files exist for readers only once a commit has added them.
"""
