"""Converts actions to and from the JSON of the Delta log.

Guarantees:

- Known fields are checked strictly (types, ranges, required fields); unknown actions and fields are
  preserved and written back. A `format` without `options` is written with `"options":{}`, because
  readers fail without it.
- One log line may hold several top-level keys. Each becomes one action, in the order of the line;
  a key with the value `null` stands for an absent action and gives none.
- `serialise` and `serialise_commit` are canonical: the same actions give the same bytes, in
  whatever order they are passed. A line is written per action: by kind (see `ORDER`), inside a
  kind by its key (path and deletion vector id, appId, domain, name), then by its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from deltalakedb.actions import fields, jsonvalue
from deltalakedb.actions.fields import (
    Field,
    Layout,
    WrongType,
    read_int64,
    read_map,
    read_names,
    read_string,
    split,
    write_extra,
    wrong_field,
)
from deltalakedb.actions.values import (
    Action,
    AddFile,
    CdcFile,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Sidecar,
    Txn,
    UnknownAction,
)
from deltalakedb.errors import InvalidActionError, InvalidLogError

_LAYOUTS: Final[dict[type[Any], fields.Layout]] = {
    AddFile: fields.ADD,
    RemoveFile: fields.REMOVE,
    CdcFile: fields.CDC,
    Protocol: fields.PROTOCOL,
    Txn: fields.TXN,
    DomainMetadata: fields.DOMAIN_METADATA,
    CheckpointMetadata: fields.CHECKPOINT_METADATA,
    Sidecar: fields.SIDECAR,
}

ORDER: Final = (
    "commitInfo",
    "protocol",
    "metaData",
    "domainMetadata",
    "txn",
    "remove",
    "add",
    "cdc",
    "checkpointMetadata",
    "sidecar",
)
"""The order of kinds in a canonical commit; unknown actions come last.

commitInfo leads because in-commit timestamps demand it; protocol and metaData come before the
files that depend on them.
"""

_RANK: Final = {name: rank for rank, name in enumerate(ORDER)}
_MISSPELT: Final = {name.lower(): name for name in ORDER}


def _read_format(value: Any) -> _FormatParts:
    if not isinstance(value, Mapping):
        raise WrongType("an object such as {'provider': 'parquet', 'options': {}}")
    if value.get("provider") is None:
        raise WrongType("a format with a provider, such as {'provider': 'parquet', 'options': {}}")
    options = value.get("options")
    rest = {key: item for key, item in value.items() if key not in ("provider", "options")}
    return (
        read_string(value["provider"]),
        {} if options is None else read_map(options),
        jsonvalue.freeze(rest, path="metaData.format"),
    )


_METADATA: Final = Layout(
    "metaData",
    (
        Field("id", "id", read_string, required=True),
        Field("format", "format_provider", _read_format, required=True),
        # Old logs may lack the schema: None.
        Field("schemaString", "schema_string", read_string),
        Field("partitionColumns", "partition_columns", read_names, required=True),
        Field("configuration", "configuration", read_map, required=True),
        Field("name", "name", read_string),
        Field("description", "description", read_string),
        Field("createdTime", "created_time", read_int64),
    ),
    order=(
        *("id", "name", "description", "format", "schemaString"),
        *("partitionColumns", "configuration", "createdTime"),
    ),
)


def _read_metadata(content: Mapping[str, Any]) -> Metadata:
    """Build the value from the protocol's form."""
    built, extra = split(_METADATA, content)
    provider, options, unknown = built[1]
    built[1:2] = [provider, options]
    built.append({**extra, "format": unknown} if unknown else extra)
    return Metadata(*built)


def _write_metadata(value: Metadata) -> dict[str, Any]:
    """Give the protocol's form."""
    form: dict[str, Any] = {
        "provider": value.format_provider,
        "options": dict(sorted(value.format_options.items())),
    }
    unknown = value.extra.get("format")
    if isinstance(unknown, Mapping):
        write_extra(form, unknown)
    out: dict[str, Any] = {"id": value.id}
    if value.name is not None:
        out["name"] = value.name
    if value.description is not None:
        out["description"] = value.description
    out["format"] = form
    if value.schema_string is not None:
        out["schemaString"] = value.schema_string
    out["partitionColumns"] = list(value.partition_columns)
    out["configuration"] = dict(sorted(value.configuration.items()))
    if value.created_time is not None:
        out["createdTime"] = value.created_time
    write_extra(out, value.extra)
    return out


def _check_metadata(value: Metadata) -> None:
    """Check a value that a user built."""
    if not isinstance(value.extra, Mapping):
        raise wrong_field("metaData", "extra", value.extra, "a mapping")
    for name, item in (
        ("format", value.format_options),
        ("configuration", value.configuration),
    ):
        if not isinstance(item, Mapping):
            raise wrong_field("metaData", name, item, "a mapping of strings")
    if not isinstance(value.partition_columns, (list, tuple)):
        raise wrong_field(
            "metaData", "partitionColumns", value.partition_columns, "a tuple of names"
        )
    for key, item in value.extra.items():
        if item is not None and key in _METADATA.known and key != "format":
            raise wrong_field("metaData", key, item, "its own typed field of the value")
    try:
        _read_metadata(_write_metadata(value))
    except TypeError as error:
        raise wrong_field("metaData", "extra", value.extra, f"only string keys ({error})") from None


def _reader(cls: Callable[..., Any], layout: fields.Layout) -> Callable[[Mapping[str, Any]], Any]:
    def read(content: Mapping[str, Any]) -> Any:
        built, extra = fields.split(layout, content)
        return cls(*built, extra)

    return read


def _read_commit_info(content: Mapping[str, Any]) -> CommitInfo:
    return CommitInfo(jsonvalue.freeze(content, path="commitInfo"))


_READERS: Final[dict[str, Callable[[Mapping[str, Any]], Action]]] = {
    "commitInfo": _read_commit_info,
    "metaData": _read_metadata,
    **{layout.name: _reader(cls, layout) for cls, layout in _LAYOUTS.items()},
}


def from_dict(d: Mapping[str, Any], *, where: str = "") -> Action:
    """Build the action of a protocol-shaped mapping with one key, such as `{"add": {…}}`.

    `where` is put into the message of an error. An unknown name gives an `UnknownAction`.
    """
    name, content = _only_item(d, where)
    return _build(name, content, where)


def as_action(x: Action | Mapping[str, Any]) -> Action:
    """Accept what a user passes: a value is checked and returned itself, a mapping is built.

    A mapping whose name is a known action in the wrong case is refused: it is a slip, and
    committing it as an unknown action would lose it silently.
    """
    if type(x) is AddFile and fields.is_plain_add(x):
        return x
    layout = _LAYOUTS.get(type(x))
    if layout is not None:
        fields.check_value(layout, x)
        return x  # type: ignore[return-value]
    if isinstance(x, Mapping):
        for name in x:
            correct = _MISSPELT.get(str(name).lower())
            if correct is not None and correct != name:
                raise InvalidActionError(
                    f"Unknown action {name!r}",
                    why="names of actions are case-sensitive",
                    fix=f"Write {correct!r}",
                )
        return from_dict(x)
    check_action(x)
    return x


def check_action(action: Action) -> None:
    """Raise `InvalidActionError` unless every field of the value fits the protocol."""
    layout = _LAYOUTS.get(type(action))
    if layout is not None:
        fields.check_value(layout, action)
    elif isinstance(action, Metadata):
        _check_metadata(action)
    elif isinstance(action, CommitInfo):
        if not isinstance(action.fields, Mapping):
            raise fields.wrong_field("commitInfo", "fields", action.fields, "a mapping")
        jsonvalue.freeze(action.fields, path="commitInfo")
    elif isinstance(action, UnknownAction):
        if action.name in _RANK:
            expected = "a name this release does not know"
            raise fields.wrong_field("unknown", "name", action.name, expected)
        jsonvalue.freeze({action.name: 0}, path="unknown")
        jsonvalue.freeze(action.value, path=action.name)
    else:
        raise _not_one_action(action)


def to_dict(action: Action) -> dict[str, Any]:
    """Give the protocol-shaped mapping: known fields in protocol order, then `extra` sorted."""
    if type(action) is AddFile:
        return {"add": fields.write_add(action)}
    layout = _LAYOUTS.get(type(action))
    if layout is not None:
        return {layout.name: fields.write_fields(layout, action)}
    if isinstance(action, Metadata):
        return {"metaData": _write_metadata(action)}
    if isinstance(action, CommitInfo):
        return {"commitInfo": jsonvalue.canonical(action.fields)}
    if isinstance(action, UnknownAction):
        return {action.name: jsonvalue.canonical(action.value)}
    raise _not_one_action(action)


def parse_line(line: str | bytes, *, where: str = "") -> list[Action]:
    """Parse one line of a commit file: one action for each top-level key that is not null."""
    try:
        document = jsonvalue.loads(line)
    except InvalidActionError as error:
        raise _at(where, error) from error
    if not isinstance(document, dict):
        raise _at(where, _not_one_action(document))
    return [
        _build(name, content, where)
        for name, content in document.items()
        if content is not None or name not in _RANK
    ]


def parse_commit(data: bytes, *, file: str) -> list[Action]:
    """Parse a commit file (or JSON checkpoint): actions in file order.

    Tolerates a byte order mark, CRLF and blank lines. Raises `InvalidLogError` with the file and
    the line number.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise InvalidLogError(
            f"{file}, line {number}, is damaged",
            why="it is not valid UTF-8",
            fix="Restore the file from a copy",
        ) from error
    actions: list[Action] = []
    # Only a line feed ends a line: U+0085, U+2028 and their like may stand inside JSON strings.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.isspace():
            continue
        try:
            actions.extend(parse_line(line))
        except InvalidActionError as error:
            raise InvalidLogError(
                f"{file}, line {number}, is damaged: {error.what}",
                why=error.why,
                fix=f"{error.fix or 'Correct the line'}, or restore the file from a copy",
            ) from error
    return actions


def serialise(action: Action) -> str:
    """Write one action as its canonical line, without the line end."""
    if isinstance(action, (AddFile, RemoveFile)):
        vector = action.deletion_vector
        plain = not action.extra and (vector is None or not vector.extra)
    else:
        plain = False
    return jsonvalue.dumps_ordered(to_dict(action), plain=plain)


def serialise_commit(actions: Iterable[Action]) -> bytes:
    """Write a whole commit in canonical order: UTF-8, one action a line, ended by a line feed."""
    commit = list(actions)
    if len(commit) == 1:
        return f"{serialise(commit[0])}\n".encode()
    lines = sorted((*_sort_key(action), serialise(action)) for action in commit)
    return "".join(f"{line[-1]}\n" for line in lines).encode("utf-8")


_KEYS: Final[dict[type[Any], tuple[int, Callable[[Any], tuple[str, str]]]]] = {
    CommitInfo: (_RANK["commitInfo"], lambda _: ("", "")),
    Protocol: (_RANK["protocol"], lambda _: ("", "")),
    Metadata: (_RANK["metaData"], lambda _: ("", "")),
    DomainMetadata: (_RANK["domainMetadata"], lambda action: (action.domain, "")),
    Txn: (_RANK["txn"], lambda action: (action.app_id, "")),
    RemoveFile: (_RANK["remove"], lambda action: (action.path, action.dv_id)),
    AddFile: (_RANK["add"], lambda action: (action.path, action.dv_id)),
    CdcFile: (_RANK["cdc"], lambda action: (action.path, "")),
    CheckpointMetadata: (_RANK["checkpointMetadata"], lambda _: ("", "")),
    Sidecar: (_RANK["sidecar"], lambda action: (action.path, "")),
    UnknownAction: (len(ORDER), lambda action: (action.name, "")),
}


def _sort_key(action: Action) -> tuple[int, str, str]:
    rank, key = _KEYS[type(action)]
    return rank, *key(action)


def _only_item(d: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(d, Mapping) or len(d) != 1:
        raise _at(where, _not_one_action(d))
    item: tuple[Any, Any] = next(iter(d.items()))
    return item


def _build(name: Any, content: Any, where: str) -> Action:
    reader = _READERS.get(name)
    try:
        if reader is None:
            return UnknownAction(fields.read_string(name), jsonvalue.freeze(content, path=name))
        if not isinstance(content, Mapping):
            raise fields.wrong_field(name, name, content, "an object with the fields of the action")
        return reader(content)
    except InvalidActionError as error:
        raise _at(where, error) from error
    except fields.WrongType as error:
        raise _at(where, fields.wrong_field("unknown", "name", name, str(error))) from None


def _not_one_action(value: object) -> InvalidActionError:
    text = repr(value)
    return InvalidActionError(
        "This is not an action",
        why=f"it is {text[:60]} ({type(value).__name__})",
        fix="Pass a value of deltalakedb.actions, or a mapping with one key such as {'add': {…}}",
    )


def _at(where: str, error: InvalidActionError) -> InvalidActionError:
    if not where:
        return error
    return InvalidActionError(f"{where}: {error.what}", why=error.why, fix=error.fix)


_FormatParts = tuple[str, dict[str, str], dict[str, Any]]
