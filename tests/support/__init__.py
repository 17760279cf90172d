"""Helpers of the tests: servers, proxies, builders; and fixtures, which conftest.py loads."""
