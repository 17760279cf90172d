"""The set-up of every test: plugins with fixtures, hypothesis profiles, marks by fixture."""

import pytest

from support.java_options import set_java_options
from support.profiles import SOAK, load_hypothesis_profile

pytest_plugins = [
    "support.postgres",
    "support.store",
    "support.lake",
    "support.golden",
    "support.s3",
    "support.published",
    "support.spark",
    "support.unprivileged",
    "support.mirror_lakes",
    "support.scheduling",
]

if not SOAK:
    set_java_options()
load_hypothesis_profile()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the soak tests to `make soak`; Spark takes its time on a busy machine."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
    if SOAK:
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]
