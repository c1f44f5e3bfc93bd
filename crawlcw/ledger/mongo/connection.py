"""Connect to the MongoDB servers, and translate errors of the driver."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymongo
from pymongo.common import URI_OPTIONS_VALIDATOR_MAP
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    CursorNotFound,
    DocumentTooLarge,
    ExecutionTimeout,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
    WTimeoutError,
)

from crawlcw.errors import LedgerConfigurationError, LedgerError, LedgerUnavailableError
from crawlcw.ledger.mongo.diagnosis import refused_sentence
from crawlcw.ledger.mongo.drivers import awaited, client_class

CONNECT_TIMEOUT = 5.0
_CLOSE_TIMEOUT = 1.0
ACCESS_CODES = {13, 18, 8000}
#: Matches names of URL options with secret values.
_HOLDS_SECRETS = re.compile("pass|properties", re.IGNORECASE)
_QUOTED = re.compile(r"(['\"])(.+?)\1")


def connected(url: str, driver: str) -> tuple[Any, Any]:
    """Return a client of *driver*, and the database that *url* names.

    Raises `LedgerConfigurationError` if *url* is invalid; the message has no part of the password.
    """
    try:
        # Turn warnings into errors, because the driver only warns about a wrong option and connects
        # without it, for example without TLS.
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            client = _client(url, driver)
            return client, client.get_default_database(default="crawlcw")
    except PyMongoError as error:
        message = f"MongoDB: {_without_secrets(sentence(error), url)}"
    except (ValueError, UserWarning) as error:
        message = (
            f"the ledger's URL is invalid: {_without_secrets(_with_option_name(error, url), url)}"
        )
    except OSError as error:
        # Errors of TLS are `OSError`s too, for example a file that is not a certificate.
        message = f"a TLS file in the ledger's URL is not usable: {_reason(error)}"
    except Exception as error:
        # If pyOpenSSL is installed, PyMongo uses it. Errors of pyOpenSSL derive only from
        # `Exception`.
        if type(error).__module__ != "OpenSSL.SSL":
            raise
        message = f"a TLS file in the ledger's URL is not usable: {error}"
    raise LedgerConfigurationError(message)


def _without_secrets(message: str, url: str) -> str:
    """Return the driver's message; replace each quoted text that may be a part of a password."""
    credentials = url.rpartition("@")[0]
    return _QUOTED.sub(lambda m: "'***'" if m[2] in credentials or "@" in m[2] else m[0], message)


def _with_option_name(error: Exception, url: str) -> str:
    """Return the driver's message with the name of the option that the driver does not know.

    The driver's message has no name: if a password contains `&`, the name may be a part of it.
    """
    options = url.rpartition("@")[2].partition("?")[2]
    names = (option.partition("=")[0] for option in re.split("[&;]", options))
    unknown = next((name for name in names if name.lower() not in URI_OPTIONS_VALIDATOR_MAP), "")
    if _HOLDS_SECRETS.search(options):
        return str(error)
    return str(error).replace("Unknown option.", f"Unknown option {unknown}.")


def _reason(error: OSError) -> str:
    message = error.strerror or str(error)
    return f"{error.filename}: {message}" if error.filename else message


def _client(url: str, driver: str) -> Any:
    defaults: dict[str, Any] = {
        # Set a time limit, because the driver waits for ever for a frozen server by default.
        "timeoutMS": 10_000,
        "serverSelectionTimeoutMS": 5_000,
        # Turn off the driver's retries, which would cost the server a second write for each claim.
        # The callers can repeat a failed operation, because every operation is idempotent.
        "retryWrites": False,
        "appname": "crawlcw",
    }
    query = url.partition("?")[2].lower()
    options = {key: value for key, value in defaults.items() if f"{key.lower()}=" not in query}
    client = client_class(driver)
    return client(url, tz_aware=True, datetime_conversion="DATETIME_AUTO", **options)


async def close_client(client: Any) -> None:
    """Close a client of either driver."""
    # Limit the time, because `close` ends the driver's sessions at the server, and `timeoutMS` does
    # not apply to `close`. Without a limit `close` would wait for ever for a frozen server.
    with pymongo.timeout(_CLOSE_TIMEOUT), suppress(TimeoutError):
        await awaited(client.close())


@contextmanager
def mapped() -> Iterator[None]:
    """Turn errors of the driver into errors of the ledger; no other function does so."""
    try:
        yield
    except (
        ConnectionFailure,
        ExecutionTimeout,
        WTimeoutError,
        WriteConcernError,
        CursorNotFound,
    ) as error:
        raise LedgerUnavailableError(sentence(error)) from error
    except (ConfigurationError, InvalidURI) as error:
        raise LedgerConfigurationError(f"MongoDB: {sentence(error)}") from error
    except BulkWriteError as error:
        raise LedgerUnavailableError(sentence(error)) from error
    except OperationFailure as error:
        if error.code in ACCESS_CODES:
            raise LedgerConfigurationError(refused_sentence(error)) from error
        raise LedgerError(f"MongoDB: {sentence(error)}") from error
    except DocumentTooLarge:
        raise
    except PyMongoError as error:
        raise LedgerError(f"MongoDB: {sentence(error)}") from error


def refusals(error: BulkWriteError) -> dict[int, str]:
    """Return a map from the index of each refused write in the bulk to the server's message."""
    details = error.details or {}
    if details.get("writeConcernErrors"):
        raise LedgerUnavailableError(sentence(error)) from error
    # Leave out duplicate keys, because they mean that another upsert has just added the document.
    return {
        e["index"]: str(e["errmsg"])[:500]
        for e in details.get("writeErrors", ())
        if e["code"] != 11000
    }


def sentence(error: Exception) -> str:
    """Return the driver's error message without the dump at its end."""
    # The drivers append a dump of the topology, or of the whole reply, to the message.
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0]
    return text.partition(" (configured timeouts:")[0][:300]
