"""Check of a page's markup before parsing, in linear time.

A few shapes keep lexbor busy for minutes (lexbor issue 340; deep nesting; a tag
with thousands of attributes), a dense page makes a tree of seventy times its
size, and a thread that parses cannot be stopped. One rule on counts estimates the steps of
the parser: bytes, `<`, tags left open, formatting tags, attributes. A page that may take over
half a second is parsed in a process that can be stopped, see `crawl.parsing`; without such a
process it is refused if it may take seconds. So a false alarm costs a crawl some milliseconds.

The memory that a page takes in the parser does not always show in its text, and the parser has no
limit. The system keeps the bound of a tree: RLIMIT_DATA of setrlimit(2).
"""

import codecs
import os
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from crawlcw.api.raw_text import ATTRIBUTES, COMMENT, TEXT_ELEMENT
from crawlcw.errors import ParseRefusedError

T = TypeVar("T")

#: The steps of a page that the parser reads within half a second [measured].
MAX_STEPS = 250_000_000
#: The steps from which on a page is refused if no process can be stopped for it.
REFUSED_STEPS = 10 * MAX_STEPS
#: A tree that is made without a look at the memory it takes.
MAX_TREE = 128 << 20
#: The most memory of a tree that is made in this process. By its look none takes more than
#: MAX_TREE, but a few formatting tags that are left open are opened again in every block.
MOST_HEAP = 2 * MAX_TREE
#: A body, or a tree, from which on it is parsed in another process: it takes 0.2 s, at most.
LARGE = 1 << 20
_LARGE_TREE = 32 << 20
#: No shape of this many bytes takes longer than half a second.
HARMLESS = 8 * 1024
#: Fewer attributes than fit into a tag of this size may be in any number of tags.
_LONG_TAG = 2048
_CHUNK = 4096
#: So many NULs take 1 MiB of errors.
_MOST_NULS = 1 << 16
#: A page of up to 4,000 tags takes at most half a second, with a limit for its memory [measured].
_HARMLESS_TAGS = 4_000
#: Steps of an open formatting tag for each tag of the page: it is opened again for each, and
#: each end tag may go through all of the page.
_REOPENED = 800
#: Steps of an option, <html> or <body> for each other one: it costs more than the one before.
_REPEATED_STEPS = 60
#: Steps of an attribute for each other one of its tag.
_COMPARED = 2
#: Bytes that a tag adds to a tree, at most: an element with its text, [measured] 30 to 230.
_TREE_PER_TAG = 256
#: Bytes that a byte of text or attributes adds, on most pages.
_TREE_PER_BYTE = 2

#: Options, <html>, <body>, and the tags that the parser opens again in every block until they are
#: closed. It keeps one <a>. The lookaheads leave out most tags at their first letters, and without
#: a flag for the case the search begins at each `<` alone.
_COSTLY = re.compile(
    rb"<(?=/?[bcefhinostuBCEFHINOSTU])(?!/?(?:span|t[dr]|h[1-6r]|tbody))(/?)("
    rb"[bBiIsSuU](?=[\s/>])|[bB][iI][gG]|[cC][oO][dD][eE]|[eE][mM]|[fF][oO][nN][tT]|[nN][oO][bB][rR]|"
    rb"[sS][mM][aA][lL][lL]|[sS][tT][rR][iI][kK][eE]|[sS][tT][rR][oO][nN][gG]|[tT][tT]|"
    rb"[oO][pP][tT][iI][oO][nN]|[hH][tT][mM][lL]|[bB][oO][dD][yY])"
)
_REPEATED = frozenset({b"option", b"html", b"body"})
_TAG = re.compile(rb"<[A-Za-z/]")
_BETWEEN_ATTRIBUTES = b" \t\n\f\r/\"'"
_MARKUP_TYPES = ("text/html", "application/xhtml+xml", "text/xml", "application/xml")
_START = 1024
_PAGE = resource.getpagesize()
#: On Linux: the sixth number counts the pages that the limit is about.
_STATM = "/proc/self/statm"
#: To ask is to open, read and close a file: each gives other threads the interpreter.
_ASKED_EVERY = 0.5
_SHADOW = b"shadowrootmode"
_TEMPLATE_OR_TEXT = re.compile(
    COMMENT + rb"|" + TEXT_ELEMENT + rb"|<template(?=[\s/>])(?P<opened>" + ATTRIBUTES + rb")"
    rb"|(?P<closed></template(?=[\s/>]))",
    re.IGNORECASE,
)


def is_markup(content_type: str | None, body: bytes) -> bool:
    """Return whether a body is to be parsed as markup, by its type and its first character."""
    start = body[:_START].removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if start in (b"{", b"["):
        return False  # JSON, which is often sent as text/html
    kind = (content_type or "").partition(";")[0].strip().lower()
    return start == b"<" or not kind or kind in _MARKUP_TYPES or kind.endswith("+xml")


def prepared(body: bytes) -> bytes:
    """Return a page, in UTF-8, as the parser is given it.

    It has no NULs where there were very many: each is an error to lexbor, which keeps a list of
    those; ten million take 160 MB, and minutes where there is less. A browser leaves them out
    of a page's text as well. Its shadow roots are open.
    """
    if b"\0" in body and body.count(b"\0") > _MOST_NULS:
        body = body.translate(None, b"\0")
    return with_open_shadow_roots(body) if _SHADOW in body else body


def with_open_shadow_roots(body: bytes) -> bytes:
    """Return a page, in UTF-8, with a <shadow-root> for each <template shadowrootmode>.

    A browser shows its content as a part of the page. The parser keeps the content of a
    template out of the page, and its links are not found.
    """
    roots: list[bool] = []  # of the templates that are open: whether each is one

    def renamed(found: re.Match[bytes]) -> bytes:
        attributes = found["opened"]
        if attributes is not None:
            roots.append(_SHADOW in attributes.lower())
            return b"<shadow-root" + attributes if roots[-1] else found[0]
        if found["closed"] is not None and roots and roots.pop():
            return b"</shadow-root"
        return found[0]

    return _TEMPLATE_OR_TEXT.sub(renamed, body)


def tree_size(body: bytes) -> int:
    """Return about how many bytes the tree of a body takes; of odd ones it may be more."""
    return _TREE_PER_TAG * body.count(b"<") + _TREE_PER_BYTE * len(body)


def ordinary_tree_size(body: bytes) -> int | None:
    """Return about how many bytes the tree of an ordinary body takes.

    None for one that is to be parsed where that can be stopped.
    """
    if len(body) > LARGE:
        return None
    tags = body.count(b"<")
    size = _TREE_PER_TAG * tags + _TREE_PER_BYTE * len(body)  # as in `tree_size`
    if size > _LARGE_TREE:
        return None
    if len(body) > HARMLESS:
        # End tags may close nothing, so each other tag counts as open to the end.
        opened = tags - body.count(b"</") if tags > _HARMLESS_TAGS else 0
        if _steps(body, tags, opened) > MAX_STEPS:
            return None
    return size


def _steps(body: bytes, tags: int, opened: int) -> int:
    """Return about how many steps the parser takes for *tags*, of which *opened* stay open.

    It looks through the open elements for many tags. Formatting, options and attributes cost
    more with each further one.
    """
    steps = tags * opened + _COMPARED * _attribute_work(body)
    if tags > _HARMLESS_TAGS:
        formatting, repeated = _costly(body)
        steps += _REOPENED * tags * formatting + _REPEATED_STEPS * repeated**2
    return steps


def _costly(body: bytes) -> tuple[int, int]:
    """Return how many formatting tags are open at once, and how many tags are `_REPEATED`."""
    opened: Counter[bytes] = Counter()
    most = total = repeated = 0
    for slash, name in _COSTLY.findall(body):
        if name in _REPEATED or name.lower() in _REPEATED:
            repeated += not slash
        elif not slash:
            opened[name] += 1
            total += 1
            most = max(most, total)
        elif opened[name]:
            opened[name] -= 1
            total -= 1
    return most, repeated


def _attribute_work(body: bytes) -> int:
    """Return the sum of the squares of the numbers of attributes in long tags, at most."""
    at = 0
    while at < len(body) - _LONG_TAG and (end := body.rfind(b">", at, at + _LONG_TAG)) >= 0:
        at = end + 1
    if at >= len(body) - _LONG_TAG:
        return 0
    work = 0
    for part in body.split(b">"):
        if len(part) > _LONG_TAG:
            start = _TAG.search(part)
            if start is not None and len(part) - start.start() > _LONG_TAG:
                tag = part[start.start() :]
                # Not its length: a picture written into an attribute is long and harmless.
                attributes = len(tag) - len(tag.translate(None, _BETWEEN_ATTRIBUTES))
                work += attributes**2
    return work


def screen(body: bytes, *, opened: int | None = None) -> None:
    """Raise `ParseRefusedError` for a body that may take the parser long, or much memory.

    It is for callers that parse without a process that can be stopped. *opened* is how many tags
    are open at once; None: if each end tag closes one.
    """
    if tree_size(body) > MAX_TREE:
        raise ParseRefusedError(f"a tree of over {MAX_TREE >> 20} MiB")
    if len(body) > HARMLESS:
        opened = _open_at_once(body) if opened is None else opened
        if _steps(body, body.count(b"<"), opened) > REFUSED_STEPS:
            raise ParseRefusedError("tags, attributes or options that may take the parser minutes")


def _open_at_once(body: bytes) -> int:
    """Return about how many tags are open at once, if each end tag closes one."""
    opened = most = 0
    for at in range(0, len(body), _CHUNK):
        # One byte more: an end tag that lies across the end of its chunk counts as well.
        ended = body.count(b"</", at, at + _CHUNK + 1)
        opened += body.count(b"<", at, at + _CHUNK) - 2 * ended
        most = max(most, opened)
    return most


def parse_bounded(source: bytes | str) -> LexborHTMLParser:
    """Return the tree of a page; raises `ParseRefusedError` where it takes too much memory."""
    if len(source) <= HARMLESS:
        return LexborHTMLParser(source)
    for exactly in (False, True):
        try:
            return within(MOST_HEAP, lambda: LexborHTMLParser(source), exactly=exactly)
        except (SelectolaxError, MemoryError):  # for want of memory: any bytes can be parsed
            pass
    raise ParseRefusedError(f"its tree takes over {MOST_HEAP >> 20} MiB")


def within(room: int, make: Callable[[], T], *, exactly: bool = True) -> T:
    """Return what *make* returns; the process gets no more than *room* bytes meanwhile.

    What *make* does without them is its own: it raises. If not *exactly*, the process may
    have grown or shrunk for half a second since it was asked how much it has. The limit is
    that of all threads, for as long as this takes. Nothing is limited in other threads than
    the main one, two of which would take each other's limit for that of before, and nothing
    if the system does not tell the memory of the process, or has a lower limit itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()
    if exactly:
        _taken.cache_clear()
    taken = _taken(int(time.monotonic() / _ASKED_EVERY))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = taken + room
    if not taken or any(limit != resource.RLIM_INFINITY and limit < most for limit in (soft, hard)):
        return make()
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        return make()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@lru_cache(maxsize=1)
def _taken(_: int) -> int:
    """Return the bytes that count by the limit, 0 where the system does not tell."""
    try:
        # Opened anew: a forked process would read its parent's.
        statm = os.open(_STATM, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(statm, 128).split()[5]) * _PAGE
    finally:
        os.close(statm)
