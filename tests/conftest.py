"""What every test shares: engines as plugins (`fix_*.py`), hypothesis profiles, golden tables."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from quick_java import use_quick_java

pytest_plugins = [
    "fix_postgres",
    "fix_store",
    "fix_lake",
    "fix_golden",
    "fix_s3",
    "fix_published",
    "fix_spark",
    "fix_somebody",
]

REPOSITORY = Path(__file__).resolve().parent.parent
SOAK = os.environ.get("DELTALAKEDB_SOAK") == "1"

if not SOAK:
    use_quick_java()

# A deadline would measure the machine, not the code.
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("soak" if SOAK else "dev")


def examples(short: int) -> int:
    """How many examples of something that takes its time: as said, and more in the long form."""
    return 20 * short if SOAK else short


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


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Folder of Delta tables written by other implementations (DELTALAKEDB_GOLDEN names it)."""
    named = os.environ.get("DELTALAKEDB_GOLDEN")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "golden"
    if not folder.is_dir():
        pytest.skip(f"no golden tables at {folder}: set DELTALAKEDB_GOLDEN to their folder")
    return folder
