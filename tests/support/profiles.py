"""The two lengths of the tests: the short form of `make test` and the long one of `make soak`."""

import os

from hypothesis import HealthCheck, settings

SOAK = os.environ.get("DELTALAKEDB_SOAK") == "1"


def load_hypothesis_profile() -> None:
    """Choose the number of examples; a deadline would measure the machine, not the code."""
    settings.register_profile("dev", deadline=None, max_examples=50)
    settings.register_profile(
        "soak",
        deadline=None,
        max_examples=2_000,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("soak" if SOAK else "dev")


def examples(short: int) -> int:
    """Number of examples of a slow property: `short`, and twenty times as many in `make soak`."""
    return 20 * short if SOAK else short
