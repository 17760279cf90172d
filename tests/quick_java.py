"""How Java runs every Spark of the tests, in whichever process it starts."""

import os
from pathlib import Path

# Its best compiler takes more than it gives where no query is asked twice: a quarter of all the
# time that the tests need. The long forms run as users do.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ARCHIVE = Path(__file__).resolve().parent.parent / "build/peers/spark-classes/classes.jsa"


def use_quick_java() -> None:
    """Set the variable that `spark-submit` reads, also for all processes that come after."""
    options = QUICK_JAVA
    if _ARCHIVE.is_file():  # where it does not fit this Java it is passed over without a word
        options += f" -XX:SharedArchiveFile={_ARCHIVE} -Xlog:disable"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", options)
