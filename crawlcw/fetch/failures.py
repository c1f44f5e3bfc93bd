"""Convert errors of aiohttp and the operating system to `FetchError` with a `Reason`."""

import errno
import socket
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from crawlcw.errors import FetchError, ProxyFailedError, Reason
from crawlcw.fetch.addresses import NOT_PUBLIC, AddressRefusedError, Hop, Stage
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

_MAX_MESSAGE = 500
#: Parts of aiohttp's messages about headers and trailers that are too large.
_TOO_LARGE = ("Too many headers", "Got more than")
#: Failure reasons which mean that a proxy has not answered.
_SILENCE = frozenset({Reason.TIMEOUT_CONNECT, Reason.TIMEOUT_READ, Reason.DISCONNECTED})
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


def login_refused(proxy: Proxy, otherwise: FetchError | None = None) -> ProxyFailedError:
    """Return the error for HTTP 407; *otherwise* is the error in case the site sent the 407."""
    complaint = "needs a user and a password" if proxy.user is None else "rejects its password"
    message = f"the proxy {proxy} {complaint} (HTTP 407)"
    return ProxyFailedError(message, is_permanent=True, request_failure=otherwise)


def failure_in(error: Exception, hop: Hop) -> FetchError:
    """Convert *error* to a `FetchError`, or to a `ProxyFailedError` if the proxy failed."""
    proxy = hop.proxy
    if proxy is None:
        return failure_of(error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        if error.status == 407:
            return login_refused(proxy)
        status_text = printable(f"{error.status} {error.message}".strip())
        return FetchError(
            Reason.CONNECT, f"the proxy {proxy} responded to CONNECT with {status_text}"
        )
    failure = failure_of(error)
    if failure.reason is Reason.DISCONNECTED and (tls_fault := _untrusted(error)) is not None:
        failure = FetchError(Reason.TLS, f"the certificate is not trusted: {printable(tls_fault)}")
    if hop.stage is not Stage.DIALLING:
        tunnel_failure = FetchError(failure.reason, f"{failure.message}, through the proxy {proxy}")
        if hop.stage is Stage.PASSED or failure.reason not in _SILENCE:
            return tunnel_failure
        # If a SOCKS proxy has not sent its greeting, the failure is the proxy's. After its
        # greeting, a SOCKS proxy may be waiting for the host.
        ungreeted = proxy.is_socks and hop.stage is Stage.REACHED
        message = f"the proxy {proxy} accepts connections but does not respond"
        return ProxyFailedError(message, request_failure=None if ungreeted else tunnel_failure)
    # Use `strerror`, because aiohttp's own message would repeat the proxy's address.
    is_tls = failure.reason is Reason.TLS
    detail = (None if is_tls else getattr(error, "strerror", None)) or failure.message
    return ProxyFailedError(f"the proxy {proxy} cannot be reached: {printable(detail)}")


def _untrusted(error: BaseException | None) -> str | None:
    """Return the message of the certificate error that caused *error*, or None if none did."""
    # Search all causes, because a TypeError may hide the error (TLS in TLS in Python 3.11).
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return None if error is None else error.verify_message


def failure_of(error: Exception) -> FetchError:
    """Convert *error*, which aiohttp or the operating system raised, to a `FetchError`."""
    at_connect = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    if isinstance(at_connect or error, AddressRefusedError):
        return FetchError(Reason.REFUSED_ADDRESS, NOT_PUBLIC)
    # The `message` of an aiohttp error may be any object, for example an incomplete response.
    message = getattr(error, "message", None)
    text = message if isinstance(message, str) else str(error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        text = "the server closed the connection"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        # Show only the fault of the certificate, without OpenSSL's line number.
        fault = error.certificate_error
        text = f"the certificate is not trusted: {getattr(fault, 'verify_message', '') or fault}"
    text = printable(text or type(error).__name__, limit=_MAX_MESSAGE)
    failure = FetchError(_reason(error), text)
    failure.port_closed = at_connect is not None and at_connect.errno == errno.ECONNREFUSED
    return failure


def _reason(error: BaseException) -> Reason:
    match error:
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            is_nxdomain = error.errno in _NO_SUCH_NAME
            return Reason.DNS_NXDOMAIN if is_nxdomain else Reason.DNS_TEMPORARY
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return Reason.TLS
        case aiohttp.ClientConnectorError():
            timed_out = error.os_error.errno == errno.ETIMEDOUT
            return Reason.TIMEOUT_CONNECT if timed_out else Reason.CONNECT
        case aiohttp.ConnectionTimeoutError():
            return Reason.TIMEOUT_CONNECT
        case TimeoutError():
            return Reason.TIMEOUT_READ
        case aiohttp.ClientConnectionError() | OSError():
            return Reason.DISCONNECTED
        case aiohttp.ClientPayloadError():
            # A payload error nearly always means that the end of the body is missing. Some builds
            # of the parser also raise it for invalid chunks.
            return Reason.HEADER_TOO_LARGE if _is_too_large(error) else Reason.PAYLOAD_TRUNCATED
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return Reason.HEADER_TOO_LARGE if _is_too_large(error) else Reason.PROTOCOL
        case aiohttp.InvalidURL() | UnicodeError():
            return Reason.URL_INVALID
        case RuntimeError() if "closed" in str(error):
            return Reason.DISCONNECTED
        case _:
            return Reason.INTERNAL


def _is_too_large(error: BaseException | None) -> bool:
    while error is not None:
        # Check the text too, because aiohttp loses the error's class if trailers are too large.
        text = str(error)[:_MAX_MESSAGE]
        if isinstance(error, LineTooLong) or any(marker in text for marker in _TOO_LARGE):
            return True
        error = error.__cause__
    return False
