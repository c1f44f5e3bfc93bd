"""Any bytes as a page or as headers: links are followed or dropped, and nothing is raised."""

import time
from collections.abc import Iterator
from typing import Any

import webencodings
from hypothesis import example
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from crawlcw.api.charset import choose, decode, named
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import FetchError, ParseRefusedError, Reason
from crawlcw.fetch.body import check_type, codings_of
from crawlcw.fetch.redirects import _target as redirect_target
from crawlcw.fetch.transport import headers_of
from crawlcw.model.urls import locate
from tests.support.fuzzing import UNSEEN, URL_PIECES, fuzzed, soup

#: The encodings of the Encoding Standard, by Python's names.
ENCODINGS = {name for label in webencodings.LABELS if (name := named(label)) is not None}

PAGE = "http://a.example/folder/page.html?q"
DROPPED = {
    *(Reason.URL_INVALID, Reason.URL_TOO_LONG),
    *(Reason.REFUSED_SCHEME, Reason.REFUSED_ADDRESS),
}
#: Seconds for a page of a few hundred tags, on a busy machine.
PATIENCE = 5.0

TAGS = """
    <a~href=" <a~href= <a~href=' <img~src=" <base~href=" <base~ <BASE~HREF=/b/> <iframe~src="
    <link~href=x> <meta~http-equiv=refresh~content="0;url= <meta~charset=utf-16>
    <meta~charset="gbk"> <meta~charset=utf-7> <!-- --> <![CDATA[ ]]> <svg> <math> <template>
    </template> <select> <option> <table><tr> <form> </form> <p> </p> <b> <a> </a> <script>
    </script> <style> <title> <textarea> <plaintext> <noscript> <frameset> &amp; &#0; &#xD800;
    &#x110000; &lt " ' > = / <html><head> </head><body> <foreignObject> <annotation-xml>
    <?xml~version="1.0"~encoding="utf-16"?> <!DOCTYPE~html~[<!ENTITY~a~"b">]>
""".split()  # noqa: SIM905  # as a list it would be twice as long
parts = st.one_of(
    st.sampled_from([tag.replace("~", " ").encode() for tag in TAGS]),
    st.sampled_from([piece.encode("utf-8", "surrogatepass") for piece in URL_PIECES + UNSEEN]),
    st.binary(max_size=4),
)
pages = st.builds(
    lambda parts, times: b"".join(parts) * times,
    st.lists(parts, max_size=25),
    st.sampled_from([1, 1, 1, 40]),
)
LABELS = """
    utf-8 UTF-16 utf-16be iso-8859-1 latin1 x-user-defined gbk big5 hz utf-7 punycode
    unicode_escape idna rot13 utf_8 u8 cp1252 ISO_8859-1:1987 csISO2022JP iso-2022-jp
    iso-2022-jp-2 shift-jis euc_jp utf-8-sig utf_16_be 646 437 hex zip mbcs raw_unicode_escape
    big5hkscs gb18030 koi8-r " ' ; , = \\ charset= .. ( )
""".split()  # noqa: SIM905  # as a list it would be twice as long
labels = soup([*LABELS, *UNSEEN], most=4)
content_types = st.one_of(
    st.none(),
    labels,
    (labels | st.sampled_from(LABELS)).map(lambda label: f"text/html; charset={label}"),
)


def page(body: bytes, content_type: str | None) -> Response:
    headers = {"content-type": content_type} if content_type else None
    return Response(PAGE, request=Request(PAGE), headers=headers, body=body)


def requests_of(response: Response) -> Iterator[Request]:
    """Yield a request for each possible link of a page, by each way to follow links."""
    nodes = response.css("[href], [src], a, base")
    yield from (response.follow(node) for node in nodes)
    yield from response.follow_all("[href], [src], a, base")
    yield from response.follow_all(response.text.split()[:50])


@fuzzed(body=pages, content_type=content_types, quick=60, thorough=2000)
@example(body=b"<a href='http://[v1.a]u:p@'>1</a>", content_type=None)
@example(body=b"<base href='http://[v1.a]u:p@'><a href=x>1</a>", content_type=None)
@example(body=b"<base href='//'><a href='http:'>1</a>", content_type=None)
def test_whatever_a_page_holds_its_links_are_addresses_or_dropped(
    body: bytes, content_type: str | None
) -> None:
    response = page(body, content_type)
    began = time.process_time()

    try:
        found = list(requests_of(response))
        base = response.base_url
    except ParseRefusedError:
        found, base = [], PAGE

    assert locate(base).url == base
    for request in found:
        try:
            location, _ = request.identity()
        except FetchError:
            continue
        assert location.url == request.url
        assert locate(location.canonical).host == location.host
    assert response.dropped.counts.keys() <= DROPPED
    assert time.process_time() - began < PATIENCE


@fuzzed(
    href=soup(URL_PIECES + UNSEEN),
    base=st.none() | soup(URL_PIECES + UNSEEN),
    quick=100,
    thorough=4000,
)
def test_a_link_is_the_same_for_follow_and_follow_all_and_urljoin(
    href: str, base: str | None
) -> None:
    markup = "" if base is None else f'<base href="{base}">'
    response = page(markup.encode("utf-8", "replace"), "text/html; charset=utf-8")

    followed = [request.url for request in response.follow_all([href])]

    try:
        joined = [response.urljoin(href)]
    except FetchError as error:
        assert list(response.dropped.counts) == [error.reason]  # noqa: PT017
        joined = []
    assert followed == joined
    single = response.follow(href)
    assert [single.url] == joined or (not joined and single.url == href)


@fuzzed(content_type=content_types, body=pages | st.binary(max_size=60), quick=100, thorough=5000)
@example(content_type="text/html; charset=utf-7", body=b"")
@example(content_type=None, body=b"<meta charset=unicode_escape>")
def test_any_page_is_text_in_an_encoding_of_the_web(content_type: str | None, body: bytes) -> None:
    encoding = choose(content_type, body)

    assert encoding in ENCODINGS
    decode(body, encoding).encode()  # fails for a lone surrogate


@fuzzed(
    body=st.binary(max_size=60)
    | st.lists(
        st.sampled_from([b"\x1b$B", b"\x1b(J", b"\xd8\x00", b"\x00\xd8", b"\x81", b"a"])
    ).map(b"".join),
    quick=60,
    thorough=3000,
)
def test_any_bytes_are_text_in_every_encoding(body: bytes) -> None:
    for encoding in ENCODINGS:
        text = decode(body, encoding)

        text.encode()
        assert len(text) <= len(body)


#: Names that are no tokens are refused by the HTTP parser before this.
names = st.sampled_from([b"Location", b"LOCATION", b"Content-Encoding", b"Content-Type", b"X-a"])
fields = st.lists(
    st.tuples(
        names,
        st.binary(max_size=12)
        | st.sampled_from([b"gzip, br", b"chunked", b"video/x", b"\xc3\xbc", b"\xed\xa0\x80"])
        | soup(URL_PIECES + UNSEEN).map(lambda text: text.encode("utf-8", "surrogatepass")),
    ),
    max_size=6,
)


@fuzzed(
    raw=fields,
    status=st.integers(-1, 1000),
    times=st.sampled_from([1, 60]),
    quick=60,
    thorough=5000,
)
@example(raw=[(b"Location", b"http://[v1.a]u:p@")], status=302, times=1)
@example(raw=[(b"Location", b"//")], status=302, times=1)
def test_any_headers_are_text_and_any_location_an_address_or_refused(
    raw: list[tuple[bytes, bytes]], status: int, times: int
) -> None:
    told = [
        (name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in raw * times
    ]
    headers = headers_of(CIMultiDictProxy(CIMultiDict(told)))

    assert len(headers) <= 200
    for name, value in headers.items():
        assert name == name.lower()
        (name + value).encode()
    codings_of(headers)
    response = Response(PAGE, request=Request(PAGE), status=status, headers=headers)
    target = answer(redirect_target, response)
    if isinstance(target, str):
        assert locate(target).url == target
    answer(check_type, headers.get("content-type", ""), ())


def answer(function: Any, *arguments: Any) -> str | None:
    """Return the result of a function, or None if it raises `FetchError`."""
    try:
        result: str | None = function(*arguments)
    except FetchError:
        return None
    return result
