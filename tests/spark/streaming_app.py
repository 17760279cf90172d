"""An application of its own that copies a folder of files and a table, until all is through.

Its argument is JSON: `url`, `folder`, and options for the sink (see `dying_source`). It says
`begun` when its queries run, and `done` at the end.
"""

import json
import os
import sys
from pathlib import Path

from deltalakedb.spark.java import java_home
from spark.dying_source import DyingSource

from support.spark import new_session


def main() -> None:
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    # Whatever dies takes the processes of this session along, and nobody else's.
    assert os.getsid(0) == os.getpid()
    os.environ["JAVA_HOME"] = str(java_home())
    spark = new_session(Path(given["scratch"]))
    spark.dataSource.register(DyingSource)
    files = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
    table = spark.readStream.format("deltalakedb").option("catalog", given["url"])
    sources = {
        "from_files": files.json(str(folder / "in")),
        "from_table": table.option("maxFilesPerTrigger", 1).load("source"),
    }
    queries = [
        source.writeStream.format("dying")
        .option("catalog", given["url"])
        .options(**given["options"])
        .option("checkpointLocation", str(folder / "checkpoints" / name))
        .trigger(availableNow=True)
        .start(name)
        for name, source in sources.items()
    ]
    print("begun", flush=True)  # noqa: T201
    for query in queries:
        query.awaitTermination()
    print("done", flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main()
