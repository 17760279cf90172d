"""The OpenAPI document, made of the same list that requests are answered by."""

from __future__ import annotations

from typing import Any

from deltalakedb.web.parameters import LARGEST_PAGE, PAGE, Parameter
from deltalakedb.web.resources import RESOURCES, Resource

_SCHEMAS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE},
    "time": {"type": "string", "format": "date-time"},
    "flag": {"type": "boolean", "default": False},
    "cursor": {"type": "string"},
}
_ERROR = {
    "description": "What failed, why, and what to do.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {
                    name: {"type": "string"} for name in ("error", "what", "why", "fix")
                },
            }
        }
    },
}


def openapi(version: str) -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "deltalakedb operations",
            "version": version,
            "description": "Tables, versions, files and the mirror of a catalog. Times are "
            "milliseconds since the epoch. Lists come in pages: `next` of one is the `cursor` of "
            "the following, and null at the end.",
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": {path: _path(resource) for path, resource in RESOURCES.items()},
    }


def _path(resource: Resource) -> dict[str, Any]:
    answers = {
        "200": {
            "description": "The answer.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        "400": _ERROR,
        "503": _ERROR,
    }
    if any(one.required for one in resource.parameters):
        answers["404"] = _ERROR
    if resource.changes:
        answers |= {"401": _ERROR, "403": _ERROR}
    told: dict[str, Any] = {
        "operationId": resource.path.rpartition("/")[2],
        "summary": resource.description,
        "parameters": [_parameter(one) for one in resource.parameters],
        "responses": answers,
    }
    if resource.changes:
        told["security"] = [{"token": []}]
    return {"post" if resource.changes else "get": told}


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": "query",
        "required": one.required,
        "description": one.description,
        "schema": _SCHEMAS[one.kind],
    }
