"""The OpenAPI document, which follows from the resources and the types of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from deltalakedb.service.answers import Failure
from deltalakedb.service.commits import ANSWERS, ROUTES, EngineFailure, EngineRoute
from deltalakedb.service.parameters import LARGEST_PAGE, PAGE, Parameter
from deltalakedb.service.resources import RESOURCES, Resource

Schema = dict[str, Any]

_SCHEMAS: Final[Mapping[str, Schema]] = {
    "text": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE},
    "time": {"type": "string", "format": "date-time"},
    "flag": {"type": "boolean", "default": False},
    "cursor": {"type": "string"},
}
_SCALARS: Final[Mapping[Any, Schema]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number", "format": "double"},
    str: {"type": "string"},
    NoneType: {"type": "null"},
    Any: {},
}
# The unit of a number, by the end of its name.
_UNITS: Final[Mapping[str, str]] = {
    "_at": "Milliseconds since the epoch.",
    "_time": "Milliseconds since the epoch.",
    "since": "Milliseconds since the epoch.",
    "_ms": "Milliseconds.",
    "bytes": "Bytes.",
    "below": "Bytes; null for the largest files.",
    "next": "The cursor of the next page; null at the end.",
}
_PAGE: Final[Schema] = {"text/html; charset=utf-8": {"schema": {"type": "string"}}}
_ENGINE_REFUSALS: Final[Mapping[int, str]] = {
    403: "The token has a smaller scope.",
    404: "The table is not of this lake (code `unknown-table`).",
    409: "Another commit is that version (code `conflict`), or another table has that name.",
    410: "The commit file of a version is not in the log any more.",
    422: "The commit breaks a rule, which `rule` names; nothing was written.",
    423: "The log has commits of other writers, or the table has unpublished ones.",
    503: "The catalog or the object store does not answer: repeat the request.",
}
_REFUSALS: Final[Mapping[int, str]] = {
    400: "A parameter is missing, unknown or wrong.",
    401: "The token is missing or wrong.",
    403: "This server has no token, its role lacks the right, or the request comes from another "
    "site.",
    404: "There is no such table.",
    405: "This address takes other methods: see `Allow`.",
    413: "The request is too large.",
    415: "The body is no form.",
    421: "The server does not answer by that host name: see `--allow-host`.",
    500: "Something went wrong in the server: see its log.",
    503: "The catalog does not answer.",
}


def openapi(version: str) -> Schema:
    """The whole document."""
    components: dict[str, Schema] = {}
    schema_of(Failure, components)
    paths = {path: _path(resource, components) for path, resource in RESOURCES.items()}
    paths |= {route.path: _engine_path(route, components) for route in ROUTES}
    paths["/metrics"] = {"get": _metrics()}
    paths["/retry"] = {"post": _form()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "deltalakedb operations",
            "version": version,
            "description": "Tables, versions, files and the mirror of a catalog. Times are "
            "milliseconds since the epoch. Lists come in pages: `next` of one is the `cursor` of "
            "the following, and null at the end.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                str(status): _refusal(status, text) for status, text in _REFUSALS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def schema_of(kind: Any, components: dict[str, Schema]) -> Schema:
    """The JSON schema of a type; a type with named fields becomes one of the `components`."""
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin in (UnionType, Union):
        return _either([schema_of(one, components) for one in inner])
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0], components)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(inner[1], components)}
    if not is_dataclass(kind) and not hasattr(kind, "_fields"):
        raise TypeError(f"{kind!r} has no schema")
    name: str = kind.__name__
    if name not in components:
        components[name] = {}  # it may be part of itself
        components[name] = _object(kind, components)
    return {"$ref": f"#/components/schemas/{name}"}


def _either(schemas: list[Schema]) -> Schema:
    """One of several: a type that may be null beside it, or any of them."""
    plain = [one for one in schemas if one != {"type": "null"}]
    if len(plain) == 1 and "type" in plain[0]:
        return {**plain[0], "type": [plain[0]["type"], "null"]}
    return {"anyOf": schemas}


def _object(kind: Any, components: dict[str, Schema]) -> Schema:
    properties = {}
    for name, one in get_type_hints(kind).items():
        unit = next((text for end, text in _UNITS.items() if name.endswith(end)), None)
        properties[name] = schema_of(one, components) | ({"description": unit} if unit else {})
    return {
        "type": "object",
        "description": " ".join(cleandoc(kind.__doc__).split()),
        "properties": properties,
        "required": list(properties),
    }


def _path(resource: Resource, components: dict[str, Schema]) -> Schema:
    refusals = [400, 405, 421, 500, 503]
    if any(one.name == "name" for one in resource.parameters):
        refusals.append(404)
    if resource.changes:
        refusals += [401, 403, 413]
    answer = {"schema": schema_of(resource.answers_with, components)}
    operation: Schema = {
        "operationId": resource.path.rpartition("/")[2],
        "summary": resource.description,
        "parameters": [_parameter(one) for one in resource.parameters],
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": answer}},
            **_refused(*refusals),
        },
    }
    if resource.changes:
        operation["security"] = [{"token": []}]
    return {"post" if resource.changes else "get": operation}


def _engine_path(route: EngineRoute, components: dict[str, Schema]) -> Schema:
    """A route for engines: each needs a token, and its errors have a code."""
    answer = {"schema": schema_of(route.answers_with, components)}
    failure = {"schema": schema_of(EngineFailure, components)}
    statuses = sorted({400, 401, 403, 405, 413, 421, 500, *(status for _, status, _ in ANSWERS)})
    schemas: dict[str, Schema] = {"version": {"type": "integer", "format": "int64", "minimum": 0}}
    operation: Schema = {
        "operationId": f"delta_{route.path.rpartition('/')[2]}",
        "summary": route.description,
        "security": [{"token": []}],
        "parameters": [
            {
                "name": name,
                "in": "query",
                "required": True,
                "schema": schemas.get(name, {"type": "string", "minLength": 1}),
            }
            for name in route.parameters
        ],
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": answer}},
            **{
                str(one): _refusal(
                    one,
                    _ENGINE_REFUSALS.get(one) or _REFUSALS[one],
                    {"application/json": failure},
                )
                for one in statuses
            },
        },
    }
    if route.largest_body:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
        }
    return {route.method.lower(): operation}


def _metrics() -> Schema:
    return {
        "operationId": "exposition",
        "summary": "The metrics of this process, and the catalog in numbers, for Prometheus.",
        "parameters": [],
        "responses": {
            "200": {
                "description": "The text format of Prometheus.",
                "content": {CONTENT_TYPE_PLAIN_0_0_4: {"schema": {"type": "string"}}},
            },
            **_refused_by_page(405, 421, 500, 503),
        },
    }


def _form() -> Schema:
    fields = {name: {"type": "string"} for name in ("name", "token")}
    form = {"type": "object", "properties": fields, "required": list(fields)}
    return {
        "operationId": "retry_form",
        "summary": "The button of the page: as /api/v1/retry, with the token as a field. Answers, "
        "refusals too, are pages.",
        "parameters": [],
        "requestBody": {
            "required": True,
            "content": {"application/x-www-form-urlencoded": {"schema": form}},
        },
        "responses": {
            "200": {
                "description": "The result.",
                "content": _PAGE,
            },
            **_refused_by_page(400, 401, 403, 404, 405, 413, 415, 421, 500, 503),
        },
    }


def _refused(*statuses: int) -> dict[str, Schema]:
    return {str(one): {"$ref": f"#/components/responses/{one}"} for one in sorted(statuses)}


def _refused_by_page(*statuses: int) -> dict[str, Schema]:
    """Refusals outside of /api/, which are pages for people."""
    return {str(one): _refusal(one, _REFUSALS[one], _PAGE) for one in sorted(statuses)}


def _refusal(status: int, text: str, content: Schema | None = None) -> Schema:
    failure = {"schema": {"$ref": f"#/components/schemas/{Failure.__name__}"}}
    answer: Schema = {"description": text, "content": content or {"application/json": failure}}
    if status == 405:
        answer["headers"] = {"Allow": {"schema": {"type": "string"}}}
    return answer


def _parameter(one: Parameter) -> Schema:
    return {
        "name": one.name,
        "in": "query",
        "required": one.required,
        "description": one.description,
        "schema": _SCHEMAS[one.kind],
    }
