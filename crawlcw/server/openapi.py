"""Generate the server's OpenAPI document from the models that validate its requests."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

import crawlcw
from crawlcw.server import requests
from crawlcw.server.operations import OPERATIONS, Operation
from crawlcw.server.responses import Error

_REFUSALS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The Host header does not name this machine.",
    404: "The task does not exist.",
    408: "The body did not arrive within 30 s.",
    409: "The worker has no lease of the task with this fence.",
    413: "The body is larger than 8 MiB.",
    415: "The body is not plain application/json.",
    422: "The request does not match its schema, or the ledger cannot store its values.",
    503: "The ledger is unavailable, or all connections are in use; Retry-After says "
    "when to try again.",
}
_JSON = "application/json"
Document = dict[str, Any]


def document(use_case: str, *, needs_token: bool) -> Document:
    """Return the OpenAPI document of the task server for *use_case*."""
    requests = [(operation.name, "validation", operation.accepts) for operation in OPERATIONS]
    responses = [
        (operation.name, "serialization", TypeAdapter(operation.returns))
        for operation in OPERATIONS
    ]
    schemas, definitions = TypeAdapter.json_schemas(
        [*requests, *responses, ("error", "serialization", TypeAdapter(Error))],  # type: ignore[list-item]  # mypy infers str, not Literal
        ref_template="#/components/schemas/{model}",
    )
    shared_schemas = definitions.get("$defs", {})
    access_status = 401 if needs_token else 403
    refusals = {
        status: _content(description, schemas["error", "serialization"])
        for status, description in _REFUSALS.items()
    }
    paths = {
        operation.path: {
            operation.method.lower(): _operation(
                operation, schemas, shared_schemas, refusals, access_status
            )
        }
        for operation in OPERATIONS
    }
    paths["/openapi.json"] = {
        "get": {
            "operationId": "openapi",
            "summary": "This document.",
            "responses": {
                "200": _content("The document.", {"type": "object"}),
                str(access_status): refusals[access_status],
            },
        }
    }
    openapi: Document = {
        "openapi": "3.1.0",
        "info": {"title": f"crawlcw: the tasks of {use_case}", "version": crawlcw.__version__},
        "paths": paths,
        "components": {"schemas": shared_schemas},
    }
    if needs_token:
        openapi["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        openapi["security"] = [{"token": []}]
    return openapi


def _operation(
    operation: Operation,
    schemas: Mapping[Any, Document],
    shared_schemas: Document,
    refusals: Mapping[int, Document],
    access_status: int,
) -> Document:
    responses = {"200": _content("Success.", schemas[operation.name, "serialization"])}
    for status in sorted({access_status, *operation.refusals}):
        responses[str(status)] = refusals[status]
    entry: Document = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": responses,
    }
    schema = schemas[operation.name, "validation"]
    if operation.method == "POST":
        entry["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    elif "{key}" in operation.path:
        key = TypeAdapter(requests.Key).json_schema()
        entry["parameters"] = [{"name": "key", "in": "path", "required": True, "schema": key}]
    elif parameters := _in_query(schema, shared_schemas):
        entry["parameters"] = parameters
    return entry


def _content(description: str, schema: Document) -> Document:
    return {"description": description, "content": {_JSON: {"schema": schema}}}


def _in_query(schema: Document, shared_schemas: Document) -> list[Document]:
    if "$ref" in schema:
        schema = shared_schemas.pop(schema["$ref"].rpartition("/")[2], {"properties": {}})
    return [
        {"name": name, "in": "query", "required": False, "schema": _not_null(property_schema)}
        for name, property_schema in schema.get("properties", {}).items()
    ]


def _not_null(schema: Document) -> Document:
    """Return *schema* without null, because a query parameter may be absent but not null."""
    fields = {name: value for name, value in schema.items() if name not in ("default", "title")}
    if choices := fields.pop("anyOf", None):
        (choice,) = (value for value in choices if value != {"type": "null"})
        fields |= choice
    return fields
