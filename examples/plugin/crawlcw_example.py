"""One extension of each kind: a feed, a command, a layer and a store.

    pip install examples/plugin
    crawlcw plugins
    crawlcw export books -o books.xml
    crawlcw domains books
    SIGN_KEY=secret crawlcw run books -s layers=sign
    LEDGERS=/srv/ledgers crawlcw stats books --ledger mounted://shop

`crawlcw guide extending` explains each kind.
"""

import asyncio
import base64
import hmac
import json
import os
import re
from collections import Counter
from datetime import date
from urllib.parse import urlsplit
from xml.sax.saxutils import XMLGenerator

import click

from crawlcw import ledger_opening as opening
from crawlcw import open_ledger

#: The characters that XML 1.0 cannot have.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Xml:
    """A feed: an `<item>` for each item, with a `<field>` for each of its fields."""

    def __init__(self, stream, *, columns=None):
        self._columns = columns
        self._xml = XMLGenerator(stream, "utf-8", short_empty_elements=True)
        self._xml.startDocument()
        self._xml.startElement("items", {})

    def write(self, item):
        """Write the next item."""
        self._xml.startElement("item", {})
        for name in item if self._columns is None else self._columns:
            if name in item:
                self._xml.startElement("field", {"name": _clean(name)})
                self._xml.characters(_clean(_text(item[name])))
                self._xml.endElement("field")
        self._xml.endElement("item")

    def finish(self):
        """Complete the document."""
        self._xml.endElement("items")
        self._xml.endDocument()

    def close(self):
        """Release nothing: this writer has no temporary files."""


def _text(value):
    return value if isinstance(value, str) else json.dumps(value, default=_plain)


def _plain(value):
    """Return the text of a time, a date, a decimal or bytes."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)


def _clean(text):
    return _NOT_XML.sub("\ufffd", text)


@click.command("domains")
@click.argument("spider")
@click.option("--ledger", "url", default=opening.DEFAULT_LEDGER, show_default=True)
def domains(*, spider, url):
    """Count the items of SPIDER by the domain of their page."""
    for domain, count in asyncio.run(_counts(spider, url)).most_common():
        click.echo(f"{count:8}  {domain}")


async def _counts(spider, url):
    ledger = await open_ledger(url, spider, create=False)
    try:
        return Counter([urlsplit(row.url).hostname async for row in ledger.queries.items()])
    finally:
        await ledger.close()


class Sign:
    """A layer that signs each request with the key in SIGN_KEY."""

    def __init__(self, key=None):
        self.key = (key or os.environ["SIGN_KEY"]).encode()

    async def __call__(self, attempt, request, call_next):
        text = f"{request.method} {request.url}".encode()
        signature = hmac.new(self.key, text, "sha256").hexdigest()
        request.set_header("X-Signature", signature)
        return await call_next(attempt, request)


class Mounted:
    """A store of SQLite files in the folder LEDGERS: `mounted://shop` is `shop.db`."""

    @classmethod
    async def open(cls, url, name, *, kind, create):
        return await opening.open_ledger(cls.file(url), name, kind=kind, create=create)

    @classmethod
    async def open_existing(cls, url, name):
        return await opening.open_for_inspection(cls.file(url), name)

    @classmethod
    async def recorded_names(cls, url):
        return await opening.recorded_names(cls.file(url))

    @classmethod
    async def discard(cls, url, name):
        await opening.discard(cls.file(url), name)

    @staticmethod
    def file(url):
        folder = os.environ.get("LEDGERS", "/srv/ledgers")
        return f"sqlite:///{folder}/{url.partition('://')[2]}.db"
