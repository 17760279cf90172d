"""Render the fixes in a message for the command line or for Spark.

An error says "`lake.drop_table('sales.orders', force=True)`" (`errors.Fix`). The command line and
the operations page say "`deltalakedb drop sales.orders --force`"; Spark has no `lake`, and says
"`connect(…).drop_table('sales.orders', force=True)`". Only code spans change: quoted names, URLs
and the messages of other programs stay as they are.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from deltalakedb.errors import Fix, Option

# Each call that an error may name, and its command.
COMMANDS: Final[Mapping[str, str]] = {
    "lake.adopt": "adopt",
    "lake.clone_table": "clone",
    "lake.convert_table": "convert",
    "lake.create_table": "create",
    "lake.discard_import": "import --discard",
    "lake.drop_table": "drop",
    "lake.expire": "expire",
    "lake.export": "export",
    "lake.import_table": "import",
    "lake.mirror.retry": "mirror retry",
    "lake.mirror.run": "mirror run",
    "lake.mirror.run_once": "mirror once",
    "lake.mirror.status": "mirror status",
    "lake.repair": "repair",
    "lake.restore_expired": "restore-expired",
    "lake.set_warehouse": "warehouse",
    "lake.table": "show",
    "lake.tables": "tables",
    "lake.verify": "verify",
    "snapshot.files": "files",
    "table.history": "history",
}
# Keyword arguments that have an option with a value, and those that have a flag.
OPTIONS: Final[Mapping[str, str]] = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("archive", "name", "older_than", "partition_schema", "retention_hours", "since"),
        *("timestamp", "until", "version"),
    )
} | {"storage_options": "--storage-option"}
FLAGS: Final[Mapping[tuple[str, object], str]] = {
    ("allow_short_retention", True): "--allow-short-retention",
    ("drop_features", False): "--keep-features",
    ("force", True): "--force",
    ("replace", True): "--replace",
    ("trust_commits", True): "--trust-commits",
    ("verify", False): "--no-verify",
}
_SPARK_CALLS: Final[Mapping[str, str]] = {
    "lake.create_table": "DeltaTable.create(spark, …)",
    "lake.table": "DeltaTable.forName(spark, {})",
}
_SPARK_OPTIONS: Final[Mapping[str, str]] = {
    "allow_short_retention": "spark.databricks.delta.retentionDurationCheck.enabled=false",
    "timestamp": ".option('timestampAsOf', {})",
    "version": ".option('versionAsOf', {})",
}
_SPAN: Final = re.compile(r"`((?:lake|table|snapshot)\.[^`\n]*\)|[a-z_]+=[^`\n]*)`")
_OPTION: Final = re.compile(r"([a-z_]+)=(.*)")


def as_commands(text: str) -> str:
    """Render each fix of a message as a command: `lake.verify('a')` is `deltalakedb verify a`."""
    return _render(text, _command)


def as_spark(text: str) -> str:
    """Render each fix of a message for a program that has a Spark session and no `lake`."""
    return _render(text, _spark)


def command_line(name: str, *arguments: str, options: Iterable[str] = ()) -> str:
    """Quote a command with its arguments for a shell."""
    # An argument that begins with a hyphen would be taken for an option.
    if any(one.startswith("-") for one in arguments):
        return shlex.join(["deltalakedb", *name.split(), *options, "--", *arguments])
    return shlex.join(["deltalakedb", *name.split(), *arguments, *options])


def parse(code: str) -> Fix | Option | None:
    """Read a fix back from its code; None if it is not one."""
    option = _OPTION.fullmatch(code)
    try:
        if option is not None:
            return Option(option[1], _value(option[2]))
        verb, _, arguments = code.partition("(")
        if arguments == "…)":
            return Fix(verb, ...)
        call = ast.parse(f"f({arguments}", mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        return Fix(
            verb,
            *(ast.literal_eval(one) for one in call.args),
            **{one.arg or "": ast.literal_eval(one.value) for one in call.keywords},
        )
    except (SyntaxError, ValueError):
        return None


def _render(text: str, render: Callable[[Fix | Option], str | None]) -> str:
    def span(match: re.Match[str]) -> str:
        fix = parse(match[1])
        code = None if fix is None else render(fix)
        return match[0] if code is None else f"`{code}`"

    return _SPAN.sub(span, text)


def _value(code: str) -> object:
    return ... if code == "…" else ast.literal_eval(code)


def _command(fix: Fix | Option) -> str | None:
    if isinstance(fix, Option):
        words = _option(fix.name, fix.value)
        return None if words is None else shlex.join(words)
    options = [_option(name, value) for name, value in fix.options.items()]
    if fix.verb not in COMMANDS or None in options:
        return None
    return command_line(
        COMMANDS[fix.verb],
        *(str(one) for one in fix.arguments if one is not ...),
        options=[word for words in options for word in words or ()],
    )


def _option(name: str, value: object) -> list[str] | None:
    if isinstance(value, bool):
        flag = FLAGS.get((name, value))
        return None if flag is None else [flag]
    if name not in OPTIONS:
        return None
    return [OPTIONS[name]] if value is ... else [OPTIONS[name], str(value)]


def _spark(fix: Fix | Option) -> str | None:
    if isinstance(fix, Option):
        option = _SPARK_OPTIONS.get(fix.name)
        return (
            None if option is None else option.format("…" if fix.value is ... else repr(fix.value))
        )
    if fix.verb in _SPARK_CALLS:
        return _SPARK_CALLS[fix.verb].format(*map(repr, fix.arguments))
    if fix.verb.startswith("lake."):
        return str(fix).strip("`").replace("lake.", "connect(…).", 1)
    return None
