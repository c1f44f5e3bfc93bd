"""Post JSON to the user's webhook URL, which is never logged because it may be a secret."""

import json
import logging
from collections.abc import Mapping, Sequence

import aiohttp
import anyio
import yarl

from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Seconds for all attempts together, because a shutdown waits for the webhook.
_TIMEOUT_S = 15.0
_ATTEMPT_TIMEOUT_S = 5.0
_RETRY_DELAYS_S = (1.0, 3.0)
#: HTTP statuses below 500 after which the webhook is tried again.
_RETRY_STATUSES = frozenset({408, 425, 429})


async def post(
    url: str,
    body: Mapping[str, object],
    *,
    user_agent: str,
    proxy_env: bool,
    retry_delays: Sequence[float] = _RETRY_DELAYS_S,
) -> bool:
    """Post *body* to *url*, and return whether a response had a status from 200 to 299.

    *retry_delays* has the pauses between two attempts, in seconds. The final failure is logged as a
    warning that names only the host of *url*. Never raises.
    """
    failure = f"no response within {_TIMEOUT_S:g} s"
    with anyio.move_on_after(_TIMEOUT_S):
        for delay in (0.0, *retry_delays):
            await anyio.sleep(delay)
            status, failure = await _attempt(url, body, user_agent, proxy_env=proxy_env)
            if status is not None and 200 <= status < 300:
                logger.info(
                    "the webhook received the report", extra={"event": "webhook", "status": status}
                )
                return True
            if status is not None and status < 500 and status not in _RETRY_STATUSES:
                break
    host = printable(yarl.URL(url).host or "")
    logger.warning(
        "the webhook at %s did not receive the report of the crawl: %s",
        host,
        failure,
        extra={"event": "webhook_failed", "host": host, "error": failure},
    )
    return False


async def _attempt(
    url: str, body: Mapping[str, object], user_agent: str, *, proxy_env: bool
) -> tuple[int | None, str]:
    """Return the response's status and a text; the status is None if there is no response."""
    headers = {"Content-Type": "application/json", "User-Agent": user_agent}
    timeout = aiohttp.ClientTimeout(total=_ATTEMPT_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=proxy_env) as client,
            client.post(
                url, data=json.dumps(body, default=str), headers=headers, allow_redirects=False
            ) as response,
        ):
            return response.status, f"HTTP {response.status}"
    except TimeoutError:
        return None, f"no response within {_ATTEMPT_TIMEOUT_S:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Return only the type of the error, because its message may contain the secret URL.
        return None, type(error).__name__
