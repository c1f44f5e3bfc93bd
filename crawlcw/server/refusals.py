"""Map exceptions to refusals: an HTTP status, and one sentence as JSON."""

import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from pydantic import ValidationError

from crawlcw.errors import (
    LedgerError,
    LedgerUnavailableError,
    TaskNotFoundError,
    UsageError,
)
from crawlcw.feeds.escaping import escape_json
from crawlcw.model.sanitize import printable
from crawlcw.model.values import to_json
from crawlcw.server.answers import Answer, Error
from crawlcw.server.bodies import TAGS
from crawlcw.server.refused import RefusedError

logger = logging.getLogger(__name__)

#: Seconds after which the client may try an unavailable ledger again.
_RETRY_AFTER = "1"
_LONGEST_SENTENCE = 500
_SENTENCES = {
    404: "there is no such path; /openapi.json lists them",
    405: "this path does not take this method; the header Allow lists its methods",
    413: "the body is larger than 8 MiB",
}


@web.middleware
async def told(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer any exception with a status and one sentence."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        kept = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        return _refusal(error.status, _SENTENCES.get(error.status, error.reason), kept)
    except RefusedError as error:
        return _refusal(error.status, error, error.headers)
    except TaskNotFoundError as error:
        return _refusal(404, error)
    except UsageError as error:
        return _refusal(422, error)
    except LedgerUnavailableError as error:
        logger.warning("a request is refused: %s", printable(error), extra={"event": "refused"})
        away = "the ledger is unavailable: try again"
        return _refusal(503, away, {"Retry-After": _RETRY_AFTER})
    except LedgerError as error:
        return _refusal(422, error)
    except Exception:
        # Details go to the log only: they may hold secrets.
        logger.exception("a request failed", extra={"event": "internal"})
        return _refusal(500, "an internal error of the server: its log has the details")


def wrong_shape(error: ValidationError, where: str) -> RefusedError:
    """Return the refusal of an invalid request; it names the first invalid field."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # Discriminators are not part of the body's path.
    parts = [where, *(str(each) for n, each in enumerate(first["loc"]) if n or each not in TAGS)]
    return RefusedError(422, f"{'.'.join(parts)}: {first['msg']}")


def answered(answer: Answer, *, status: int = 200) -> web.Response:
    """Return the response for an answer."""
    # Crawled text may hold control sequences, and users read answers on a terminal.
    body = escape_json(to_json(answer.model_dump())).encode()
    return web.Response(status=status, body=body, content_type="application/json")


def _refusal(
    status: int, sentence: object, headers: Mapping[str, str] | None = None
) -> web.Response:
    line = printable(" ".join(str(sentence).split()), limit=_LONGEST_SENTENCE)
    response = answered(Error(error=line), status=status)
    response.headers.update(headers or {})
    if status == 408:
        # The rest of the body may still arrive: it must not be read as a request.
        response.force_close()
    return response
