"""A Spark session in a process of its own: Delta on Spark in .venv, or Sail in its environment.

Run by path, with nothing of the project imported: Sail's environment has none of it. Settings are
JSON, the only argument. The first line of output says that the session is there. Then each line of
input is a request with a number, each line of output the answer to that number, all of them JSON;
several requests are worked on at once. It ends with its input.

    {"number": 1, "read": folder, "options": {…}, "into": file}   rows go to an Arrow file
    {"number": 2, "sql": statement, "into": file}                 the rows of a statement
    {"number": 3, "run": statement, "into": file}                 a statement, whatever it says
    {"number": 3, "stream": table, "options": {…}, "to": table, "checkpoint": folder, "into": file}
    {"number": 4, "write": query, "alias": name, "mode": mode, "options": {…}, "to": folder, …}
"""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

AT_ONCE = 3
# A server of Sail serves as long as somebody holds it.
servers: list[Any] = []


def start(settings: dict[str, Any]) -> SparkSession:
    """The session: of Sail, or of Spark with the options given."""
    if settings.get("sail"):
        from pysail.spark import SparkConnectServer

        server = SparkConnectServer(ip="127.0.0.1", port=0)
        servers.append(server)
        server.start(background=True)
        builder = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}")
    else:
        builder = SparkSession.builder.master("local[2]")
    for key, value in settings.get("options", {}).items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    if not settings.get("sail"):
        spark.udf.register("has_module", has_module, "boolean")
    return spark


def has_module(name: str) -> bool:
    """Whether the Python that runs this has a module."""
    from importlib.util import find_spec

    return find_spec(name) is not None


def frame(spark: SparkSession, request: dict[str, Any]) -> DataFrame:
    """What a request asks for."""
    if "sql" in request:
        return spark.sql(request["sql"])
    return spark.read.format("delta").options(**request["options"]).load(request["read"])


def answer(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked; errors are answers too."""
    try:
        if "run" in request:
            spark.sql(request["run"]).collect()
            table = pa.table({})
        elif "stream" in request:
            reader = spark.readStream.options(**request["options"])
            # Delta takes the table for one without a name in a thread without an active session.
            classes: Any = spark.sparkContext._jvm
            classes.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
            stream = reader.table(request["stream"]).writeStream.trigger(availableNow=True)
            stream = stream.option("checkpointLocation", request["checkpoint"])
            stream.toTable(request["to"]).awaitTermination()
            table = pa.table({})
        elif "write" in request:
            rows = spark.sql(request["write"])
            rows = rows.alias(request["alias"]) if request["alias"] else rows
            writer = rows.write.format("delta").mode(request["mode"])
            writer.options(**request["options"]).save(request["to"])
            table = pa.table({})
        else:
            table = frame(spark, request).toArrow()
        with pa.OSFile(request["into"], "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
        return {"number": request["number"]}
    except Exception as error:  # noqa: BLE001 -- whatever an engine raises is what is asked about
        return {"number": request["number"], "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer requests until there are no more."""
    # Engines print what they like to the standard output: it goes where errors go.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(said: dict[str, Any]) -> None:
        with lock:
            print(json.dumps(said), file=answers, flush=True)

    try:
        spark = start(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 -- whoever started us decides
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({})
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in sys.stdin:
            pool.submit(lambda request: say(answer(spark, request)), json.loads(line))
    spark.stop()


if __name__ == "__main__":
    main()
