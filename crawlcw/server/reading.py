"""Read and validate requests: JSON only, of bounded size."""

import json
from typing import Any, NoReturn

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from crawlcw.server.connections import CONNECTIONS
from crawlcw.server.refusals import wrong_shape
from crawlcw.server.refused import RefusedError


async def read_body(request: web.Request, declared: TypeAdapter[Any]) -> Any:
    """Return the body as *declared*; raises `RefusedError`."""
    # A form on another site's page cannot send this type without a preflight request.
    if request.content_type != "application/json":
        raise RefusedError(415, "the content type is not application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RefusedError(415, "the body has a Content-Encoding: send it without")
    found = _parsed(await request.app[CONNECTIONS].body(request))
    try:
        return declared.validate_python(found)
    except ValidationError as error:
        raise wrong_shape(error, "body") from None


def read_query(request: web.Request, declared: TypeAdapter[Any]) -> Any:
    """Return the query as *declared*; raises `RefusedError`."""
    for name in request.query:
        if len(request.query.getall(name)) > 1:
            raise RefusedError(422, f"query.{name}: given twice")
    try:
        return declared.validate_python(dict(request.query))
    except ValidationError as error:
        raise wrong_shape(error, "query") from None


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise RefusedError(400, "the body is not UTF-8") from None
    except RecursionError:
        raise RefusedError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
