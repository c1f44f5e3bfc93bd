"""Post JSON to the user's webhook URL. The URL may be a secret, and is never logged."""

import json
import logging
from collections.abc import Mapping, Sequence

import aiohttp
import anyio
import yarl

from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Seconds for all attempts together, which bounds the wait at a shutdown.
_WITHIN = 15.0
_ONE_ATTEMPT = 5.0
_WAITS = (1.0, 3.0)
#: Statuses that are worth another attempt.
_AGAIN = frozenset({408, 425, 429})


async def post(
    url: str,
    body: Mapping[str, object],
    *,
    user_agent: str,
    proxy_env: bool,
    waits: Sequence[float] = _WAITS,
) -> bool:
    """Post *body*, again after each of *waits* (seconds); return whether it succeeded (2xx).

    A failure is logged as a warning that names the host only. Never raises.
    """
    failure = f"no answer within {_WITHIN:g} s"
    with anyio.move_on_after(_WITHIN):
        for wait in (0.0, *waits):
            await anyio.sleep(wait)
            status, failure = await _attempt(url, body, user_agent, proxy_env=proxy_env)
            if status is not None and 200 <= status < 300:
                logger.info("the webhook was told", extra={"event": "webhook", "status": status})
                return True
            if status is not None and status < 500 and status not in _AGAIN:
                break
    host = printable(yarl.URL(url).host or "")
    logger.warning(
        "the webhook at %s was not told how the crawl has ended: %s",
        host,
        failure,
        extra={"event": "webhook_failed", "host": host, "why": failure},
    )
    return False


async def _attempt(
    url: str, body: Mapping[str, object], user_agent: str, *, proxy_env: bool
) -> tuple[int | None, str]:
    """Return the status of the response, or None, and the error in words."""
    headers = {"Content-Type": "application/json", "User-Agent": user_agent}
    timeout = aiohttp.ClientTimeout(total=_ONE_ATTEMPT)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=proxy_env) as client,
            client.post(
                url, data=json.dumps(body, default=str), headers=headers, allow_redirects=False
            ) as answer,
        ):
            return answer.status, f"HTTP {answer.status}"
    except TimeoutError:
        return None, f"no answer within {_ONE_ATTEMPT:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Its message may contain the URL.
        return None, type(error).__name__
