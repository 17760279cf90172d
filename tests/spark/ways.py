"""The ways in which rows of a table change, as properties of a table."""

import pytest

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
# The simplest and the one with everything; what lies between them has its turn in the long form.
WAYS = [
    pytest.param({}, id="copy"),
    pytest.param(VECTORS, id="vectors", marks=pytest.mark.soak),
    pytest.param(FEED, id="feed", marks=pytest.mark.soak),
    pytest.param({**VECTORS, **FEED}, id="vectors-feed"),
]
