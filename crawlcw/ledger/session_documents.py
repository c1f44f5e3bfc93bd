"""How sessions are written down.

Both ledgers use these names; a session is

    _id          its name
    fence        the number of changes of its state
    state        fresh, ready or retired
    cookies      {digest: {name, value, coded, domain, host_only, path, port, secure, expires}}
    headers, origins, proxy, data   as in `Identity`
    score, witness                  what pages have left; the second is `login_probe`
    owner, expires                  who logs it in, and until when; absent: nobody does
    failures, not_before, given_up, reason   of its last logins

A cookie stands under a digest of what tells it from others, for its name is a
server's text, which never becomes a field's name.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from crawlcw.ledger.documents import Document, escaped, unescaped
from crawlcw.model.frozen import frozen
from crawlcw.model.identities import Cookie, Identity, IdentityState


def session_document(identity: Identity) -> Document:
    """Return a session as it is stored, without what is nothing."""
    found = {field.name: getattr(identity, field.name) for field in fields(Identity)}
    found["_id"] = found.pop("name")
    found["witness"] = found.pop("login_probe")
    found["state"] = str(identity.state)
    found["cookies"] = {key: cookie_document(each) for key, each in identity.cookies.items()}
    found["headers"] = [list(pair) for pair in identity.headers]
    found["origins"] = list(identity.origins)
    found["data"] = escaped(dict(identity.data))
    return {name: value for name, value in found.items() if value is not None}


def cookie_document(cookie: Cookie) -> Document:
    """Return a cookie as it is stored."""
    found = {field.name: getattr(cookie, field.name) for field in fields(Cookie)}
    return {name: value for name, value in found.items() if value is not None}


def session(found: Mapping[str, Any]) -> Identity:
    """Return the session of a document; what a newer crawlcw has added is left out."""
    known = {field.name for field in fields(Identity)}
    values = {name: value for name, value in found.items() if name in known}
    return Identity(
        **{
            **values,
            "name": found["_id"],
            "login_probe": found.get("witness"),
            "state": IdentityState(found["state"]),
            "cookies": {key: _cookie(each) for key, each in found.get("cookies", {}).items()},
            "headers": tuple((name, value) for name, value in found.get("headers", ())),
            "origins": tuple(found.get("origins", ())),
            "data": frozen(unescaped(found.get("data") or {})),
        }
    )


def _cookie(found: Mapping[str, Any]) -> Cookie:
    known = {field.name for field in fields(Cookie)}
    return Cookie(**{name: value for name, value in found.items() if name in known})
