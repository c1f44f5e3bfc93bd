"""Read requests, write JSON responses, and convert exceptions to responses."""

import json
import logging
from collections.abc import Mapping
from typing import Any, NoReturn

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from crawlcw.errors import LedgerError, LedgerUnavailableError, TaskNotFoundError, UsageError
from crawlcw.feeds.escaping import escape_json
from crawlcw.model.sanitize import printable
from crawlcw.model.values import to_json
from crawlcw.server.access import RefusedError
from crawlcw.server.connections import CONNECTIONS, Handler
from crawlcw.server.requests import UNION_TAGS

logger = logging.getLogger(__name__)

#: Seconds after which a client may repeat a request that failed because the ledger is unavailable.
_RETRY_AFTER = "1"
_MAX_MESSAGE_LENGTH = 500
_MESSAGES = {
    404: "the server has no such path; /openapi.json lists all",
    405: "this path does not accept this method; the header Allow lists its methods",
    413: "the body is larger than 8 MiB",
}


async def read_request(request: web.Request, model: TypeAdapter[Any]) -> Any:
    """Validate the parameters of a request by *model*, and return them; raises `RefusedError`.

    The parameters are the body of a POST request, or the query of a GET request.
    """
    source = "body" if request.method == "POST" else "query"
    value = await _body(request) if source == "body" else _query(request)
    try:
        return model.validate_python(value)
    except ValidationError as error:
        # Show the path of the first invalid field, without `UNION_TAGS`, which are no field names.
        first_error = error.errors(include_url=False, include_context=False, include_input=False)[0]
        parts = [
            source,
            *(
                str(part)
                for n, part in enumerate(first_error["loc"])
                if n or part not in UNION_TAGS
            ),
        ]
        raise RefusedError(422, f"{'.'.join(parts)}: {first_error['msg']}") from None


def _query(request: web.Request) -> dict[str, str]:
    for name in request.query:
        if len(request.query.getall(name)) > 1:
            raise RefusedError(422, f"query.{name}: the parameter occurs twice")
    return dict(request.query)


async def _body(request: web.Request) -> Any:
    # Require JSON, because a web page of another site can send JSON only after a preflight request.
    if request.content_type != "application/json":
        raise RefusedError(415, "the content type must be application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RefusedError(415, "the body has a Content-Encoding: send it without one")
    body = await request.app[CONNECTIONS].body(request)
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_reject_constant)
    except UnicodeDecodeError:
        raise RefusedError(400, "the body is not UTF-8") from None
    except RecursionError:
        raise RefusedError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def json_response(content: object, *, status: int = 200) -> web.Response:
    """Return a response whose body is *content* as JSON."""
    # Escape control characters of crawled text, because users read responses on a terminal.
    body = escape_json(to_json(content)).encode()
    return web.Response(status=status, body=body, content_type="application/json")


@web.middleware
async def map_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert any exception of *handler* into a response with a status and a sentence."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        return _refusal(error.status, _MESSAGES.get(error.status, error.reason), headers)
    except RefusedError as error:
        return _refusal(error.status, error, error.headers)
    except TaskNotFoundError as error:
        return _refusal(404, error)
    except UsageError as error:
        return _refusal(422, error)
    except LedgerUnavailableError as error:
        logger.warning(
            "the server refused a request, because the ledger is unavailable: %s",
            printable(error),
            extra={"event": "refused"},
        )
        message = "the ledger is unavailable: try again"
        return _refusal(503, message, {"Retry-After": _RETRY_AFTER})
    except LedgerError as error:
        return _refusal(422, error)
    except Exception:
        # Write the details of the error only to the log, because the details may contain secrets.
        logger.exception(
            "a request failed because of a bug in the server", extra={"event": "internal"}
        )
        return _refusal(500, "internal error: the log of the server has the details")


def _refusal(
    status: int, message: object, headers: Mapping[str, str] | None = None
) -> web.Response:
    message = printable(" ".join(str(message).split()), limit=_MAX_MESSAGE_LENGTH)
    response = json_response({"error": message}, status=status)
    response.headers.update(headers or {})
    if status == 408:
        # Close the connection, because the rest of this body must not be read as a new request.
        response.force_close()
    return response
