"""Options of the Java virtual machine for every Spark of the tests, in whichever process."""

import os
from pathlib import Path

# Its best compiler takes more than it gives where no query is asked twice: a quarter of all the
# time that the tests need. The long forms run as users do.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ARCHIVE = Path(__file__).resolve().parents[2] / "build/peers/spark-classes/classes.jsa"


def set_java_options() -> None:
    """Set the variable that `spark-submit` reads, also for all processes that come after."""
    options = JAVA_OPTIONS
    if _ARCHIVE.is_file():  # where it does not fit this Java it is passed over without a word
        options += f" -XX:SharedArchiveFile={_ARCHIVE} -Xlog:disable"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", options)
