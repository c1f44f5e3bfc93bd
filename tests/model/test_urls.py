"""URLs: resolution, identity, host and scope."""

from html import unescape
from random import Random
from urllib.parse import unquote_to_bytes

import ada_url
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.api.charset import decode
from crawlcw.errors import FetchError, Reason
from crawlcw.model import urls
from crawlcw.model.task import task_id
from crawlcw.model.urls import MAX_LENGTH, in_scope, locate, parse, resolve

pytestmark = pytest.mark.quick

BASE = "http://example.com/a/b?q=1"


def location_of(base: str, href: str) -> urls.Location:
    found = urls.resolver(base)(href)
    if isinstance(found, urls.Refusal):
        raise found.error()
    return found


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTP://EXAMPLE.com:80/", "http://example.com/"),
        ("https://example.com:443/", "https://example.com/"),
        ("http://example.com:8080/", "http://example.com:8080/"),
        ("http://example.com/a/../b/./c", "http://example.com/b/c"),
        ("http://example.com/%7Euser", "http://example.com/~user"),
        ("http://example.com/a%2fb", "http://example.com/a%2Fb"),
        ("http://example.com/ü", "http://example.com/%C3%BC"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://example.com/?b=2&a=1", "http://example.com/?a=1&b=2"),
        ("http://example.com/?", "http://example.com/"),
        ("http:////example.com/", "http://example.com/"),
        ("http://example.com/#top", "http://example.com/"),
        ("http://user:secret@example.com/", "http://example.com/"),
        ("  http://exam\nple.com/\t ", "http://example.com/"),
        ("http://[2001:DB8::1]:81/", "http://[2001:db8::1]:81/"),
    ],
)
def test_two_spellings_have_one_canonical_form(url: str, canonical: str):
    assert locate(url).canonical == canonical
    assert locate(canonical).canonical == canonical


def test_what_is_different_stays_different():
    different = [
        "http://example.com/a",
        "https://example.com/a",
        "http://example.com/a/",
        "http://example.com/A",
        "http://www.example.com/a",
        "http://example.com/a?x",
        "http://example.com/a?x=",
        "http://example.com/a?x=1&x=2",
        "http://example.com/a?x=1",
        "http://example.com/a%2Fb",
        "http://example.com/a/b",
        "http://example.com/a?x=%26y",
        "http://example.com/a?x=&y",
        "http://example.com/a?x=%2B",
        "http://example.com/a?x=+",
    ]

    assert len({locate(url).canonical for url in different}) == len(different)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.com/", "example.com"),
        ("https://example.com:443/", "example.com"),
        ("https://example.com:80/", "example.com:80"),
        ("http://Example.COM:8080/", "example.com:8080"),
        ("http://[::1]:81/", "[::1]:81"),
    ],
)
def test_the_host_is_named_with_a_port_off_the_default(url: str, host: str):
    assert locate(url).host == host


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("c", "http://example.com/a/c"),
        ("./c", "http://example.com/a/c"),
        ("../c", "http://example.com/c"),
        ("../../../c", "http://example.com/c"),
        ("/c", "http://example.com/c"),
        ("//other.com/c", "http://other.com/c"),
        ("https://other.com", "https://other.com/"),
        ("?p=2", "http://example.com/a/b?p=2"),
        ("", "http://example.com/a/b?q=1"),
        ("#top", "http://example.com/a/b?q=1"),
        ("c#top", "http://example.com/a/c"),
        (" c \n", "http://example.com/a/c"),
        ("c?x=/y/z", "http://example.com/a/c?x=/y/z"),
        ("?", "http://example.com/a/b"),
        (" ?\n#top", "http://example.com/a/b"),
        ("\\c\\d", "http://example.com/c/d"),
        ("..\\c", "http://example.com/c"),
        ("http://other.com/c\\d?x=\\", "http://other.com/c/d?x=%5C"),
        ("///other.com/c", "http://other.com/c"),
        ("http:////other.com/c", "http://other.com/c"),
    ],
)
def test_a_link_is_resolved_on_its_page(href: str, url: str):
    assert locate(resolve(BASE, href)).canonical == url


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("\\\\b.example\\x", "http://b.example/x"),
        ("/\\b.example", "http://b.example/"),
        ("\\/b.example", "http://b.example/"),
        ("///\\b.example", "http://b.example/"),
        ("http:\\\\b.example/x", "http://b.example/x"),
        ("http://b.example\\x?\\", "http://b.example/x?\\"),
        ("http://b.example\\@example.com/", "http://b.example/@example.com/"),
        ("//u\\:p@b.example/", "http://u/:p@b.example/"),
    ],
)
def test_a_backslash_is_a_slash_as_browsers_have_it(href: str, url: str):
    assert resolve(BASE, href) == url


@given(st.text("/\\ab.:@", max_size=12))
def test_a_backslash_never_leads_to_another_host(href: str):
    try:
        location = location_of(BASE, href)
    except FetchError:
        return

    if "\\" in href:
        assert location == location_of(BASE, href.replace("\\", "/"))
    assert "\\" not in location.url


@pytest.mark.parametrize(
    ("href", "url"),
    [
        (
            "/a%3Ab%3bc%26d%2Ce%27f%28g%3Dh%40",
            "http://example.com/a%3Ab%3bc%26d%2Ce%27f%28g%3Dh%40",
        ),
        ("/%7euser/%c3%bc/%2f", "http://example.com/%7euser/%c3%bc/%2f"),
        ("?next=%2Fa%3Fb&x=%zz", "http://example.com/a/b?next=%2Fa%3Fb&x=%zz"),
        ("?q=a b+c", "http://example.com/a/b?q=a%20b+c"),
        ("?q='{x}|[`\\^]\"<>", "http://example.com/a/b?q=%27{x}|[`\\^]%22%3C%3E"),
        ('/[x]|{y}`^"<>', "http://example.com/[x]|%7By%7D%60%5E%22%3C%3E"),
        ("/100%/%2", "http://example.com/100%/%2"),
        ("/%2e%2E/x/%2e./y", "http://example.com/y"),
        ("?", "http://example.com/a/b?"),
        (" c d #top", "http://example.com/a/c%20d%20"),
        ("/\ud800\udc00\udfff", "http://example.com/%F0%90%80%80%EF%BF%BD"),
        ("https:/b.example/", "https://b.example/"),
        ("https:b.example", "https://b.example/"),
        ("http:/x", "http://example.com/x"),
        ("http:x", "http://example.com/a/x"),
        ("HTTP:?x", "http://example.com/a/b?x"),
        ("h\tttp:?x", "http://example.com/a/b?x"),
        ("http:", BASE),
        ("10.0.0.7:8080/x", "http://example.com/a/10.0.0.7:8080/x"),
        ("http://x-.\N{LATIN SMALL LETTER SHARP S}", "http://x-.xn--zca/"),
        ("http://fu\N{SOFT HYPHEN}b.example", "http://fub.example/"),
        (
            "http://\u0646\u0627\u0645\u0647\N{ZERO WIDTH NON-JOINER}\u0627\u06cc.example/",
            "http://xn--mgba3gch31f060k.example/",
        ),
        ("http://%E2%98%83.example/", "http://xn--n3h.example/"),
    ],
)
def test_the_address_is_what_a_browser_sends(href: str, url: str):
    location = location_of(BASE, href)

    assert location.url == str(parse(location.url)) == url
    # The sent form is not the identity, which is the same for all spellings.
    assert locate(location.canonical).canonical == location.canonical


@pytest.mark.parametrize("href", ["c", "?x", "//127.0.0.1:81/c", "http:c", "http://u@127.0.0.1/"])
def test_a_page_at_an_ipv4_address_links_to_its_own(href: str):
    assert location_of("http://127.0.0.1:8000/a", href).host.startswith("127.0.0.1")


@pytest.mark.parametrize(
    ("encoding", "href", "sent"),
    [
        ("shift_jis", "/s?q=日本", "/s?q=%93%FA%96{"),
        ("shift_jis", "/s?q=ソ+日#日", "/s?q=%83\\+%93%FA"),
        ("windows-1251", "?q=чай&r=a%20b", "/a/b?q=%F7%E0%E9&r=a%20b"),
        ("windows-1251", "/чай?q=x", "/%D1%87%D0%B0%D0%B9?q=x"),
        ("windows-1252", "\n?q=日é\n", "/a/b?q=%26%2326085%3B%E9"),
        ("windows-1252", "?q=é日本é", "/a/b?q=%E9%26%2326085%3B%26%2326412%3B%E9"),
        ("iso-2022-jp", "?q=日&r=本", "/a/b?q=%1B$BF|%1B(B&r=%1B$BK\\%1B(B"),
        ("iso-2022-jp", "?q=¥a☃", "/a/b?q=%1B(J\\a%26%239731%3B%1B(B"),
        ("iso-2022-jp", "?q=ｱΓ", "/a/b?q=%1B$B%%22&%23%1B(B"),
        ("euc-jp", "?q=①髙\uff5e\u2212¥", "/a/b?q=%AD%A1%FC%E2%A1%C1%A1%DD\\"),
        ("shift_jis", "?q=№∵黑", "/a/b?q=%87%82%81%E6%FCK"),
        ("big5", "?q=€╞兀", "/a/b?q=%A3%E1%F9%E9%A4a"),
        ("gbk", "?q=€𠮷", "/a/b?q=%80%26%23134071%3B"),
        ("gb18030", "?q=€𠮷", "/a/b?q=%A2%E3%954%B25"),
        ("x-user-defined", "?q=\uf780é", "/a/b?q=%80%26%23233%3B"),
        ("replacement", "?q=é", "/a/b?q=%C3%A9"),
        ("utf-16le", "?q=é", "/a/b?q=%C3%A9"),
        ("utf-8", "?q=é", "/a/b?q=%C3%A9"),
    ],
)
def test_a_query_is_sent_in_the_encoding_of_its_page(encoding: str, href: str, sent: str):
    url = resolve(BASE, href, encoding=encoding)

    assert url == f"http://example.com{sent}"
    assert locate(url).url == url


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://example.com/", Reason.REFUSED_SCHEME),
        ("mailto:a@example.com", Reason.REFUSED_SCHEME),
        ("javascript:alert(1)", Reason.REFUSED_SCHEME),
        ("data:text/html,x", Reason.REFUSED_SCHEME),
        ("example.com/a", Reason.REFUSED_SCHEME),
        ("http:///", Reason.URL_INVALID),
        ("http://example.com:0/", Reason.URL_INVALID),
        ("http://example.com:70000/", Reason.URL_INVALID),
        ("http://example.com:-1/", Reason.URL_INVALID),
        ("http://[::ffff:192.0.2.1/", Reason.URL_INVALID),
        ("http://127.0.0.1:99999/", Reason.URL_INVALID),
        ("http://[::1/", Reason.URL_INVALID),
        ("http://[::g]/", Reason.URL_INVALID),
        ("http://./", Reason.URL_INVALID),
        ("http://..:81/", Reason.URL_INVALID),
        ("http://a b/", Reason.URL_INVALID),
        ("http://a%20b/", Reason.URL_INVALID),
        ("http://a%00b/", Reason.URL_INVALID),
        ("http://example.com/" + "x" * MAX_LENGTH, Reason.URL_TOO_LONG),
        ("data:image/png;base64," + "x" * MAX_LENGTH, Reason.REFUSED_SCHEME),
        (" java\nScript:'é" + "x" * MAX_LENGTH, Reason.REFUSED_SCHEME),
    ],
)
def test_what_is_no_url_to_fetch_says_why(url: str, reason: Reason):
    with pytest.raises(FetchError) as caught:
        parse(url)

    assert caught.value.reason is reason
    for encoding in ("utf-8", "cp1252") if len(url) > MAX_LENGTH else ():
        with pytest.raises(FetchError) as caught:
            resolve(BASE, url, encoding=encoding)
        assert caught.value.reason is reason


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "0x7f.1", "127.1", "127.0.1"),
        *("127.0.0.1.", "127.0.0.256", "1.2.3.4.5", "a.1", "a.0x", "0", "0x"),
    ],
)
def test_a_host_that_ends_in_a_number_is_a_plain_address_or_none(host: str):
    with pytest.raises(FetchError) as caught:
        locate(f"http://{host}/")

    assert caught.value.reason is Reason.REFUSED_ADDRESS
    assert locate("http://127.0.0.1/").host == "127.0.0.1"
    assert locate("http://a1.0xg.x7f/").host == "a1.0xg.x7f"


def test_a_url_is_not_longer_when_it_is_located_than_it_may_be():
    """Otherwise a stored URL could not be parsed again."""
    with pytest.raises(FetchError) as caught:
        locate("http://example.com/" + 2000 * "\N{LATIN SMALL LETTER U WITH DIAERESIS}")

    assert caught.value.reason is Reason.URL_TOO_LONG


MALFORMED = [
    "", " ", "\t\n", "\0", "\x7f", "#", "?", "&", "%", "%%", "%zz", "%00", "%ff%fe", "/", "//",
    "///", "////a", "http", "http:", "http:/", "http://", "http:///", "http://?", "http://#",
    "http://:80", "http://@", "http://:@", "http://a:b:c", "http://a:-1", "http://a:99999",
    "http://a:80a/", "http://[", "http://]", "http://[]", "http://[::1", "http://[::1]a",
    "http://[::g]/", "http://[1.2.3.4]/", "http://[v1.a]/", "http://a b/", "http://a%20b/",
    "http://a%00b/", "http://..", "http://.", "http://a..b/", "http://-a-/", "http://xn--/",
    "http://xn--a/", "http://xn--\u2603/", "http://\u2603/", "http://\ud800/", "\ud800",
    "http://a/\udfff", "http://\u202e/", "http://a\u3002b/", "http://\u2100/", "http://\uff0f/",
    "http://256.256.256.256/", "http://0x7f.1/", "http://2130706433/", "http://1/", "\\\\a\\b",
    "http:\\\\a", "http://a\\b", "http://" + "a" * 64 + ".com/", "http://" + "a." * 130,
    "a" * 2001, "http://\u00df/", "javascript:", "data:,", "::", ":", ":a", "1:2",
]  # fmt: skip


def located(url: str) -> urls.Location | Reason:
    try:
        return locate(url)
    except FetchError as error:
        return error.reason


def resolved(href: str) -> urls.Location | Reason:
    try:
        return locate(resolve(BASE, href))
    except FetchError as error:
        return error.reason


def test_no_malformed_link_raises_anything_else():
    assert len(MALFORMED) == 74
    for found in [*map(located, MALFORMED), *map(resolved, MALFORMED)]:
        if isinstance(found, Reason):
            assert found in (
                Reason.URL_INVALID,
                Reason.REFUSED_ADDRESS,
                Reason.URL_TOO_LONG,
                Reason.REFUSED_SCHEME,
            )
        else:
            assert locate(found.url) == found
            assert located(found.canonical).canonical == found.canonical


characters = st.text(
    st.sampled_from("ab/?#&=%:@.[]\\ 01AfF+~;,-_\u00e4\u2603\n\0") | st.characters(), max_size=30
)


@given(characters | characters.map(lambda rest: f"http://example.com{rest}"))
def test_locating_is_idempotent(url: str):
    try:
        location = locate(url)
    except FetchError:
        return

    again = locate(location.url)
    assert again == location
    assert locate(location.canonical).canonical == location.canonical
    assert locate(location.canonical).host == location.host


@given(characters, characters)
def test_resolving_raises_nothing_but_fetch_errors(path: str, href: str):
    try:
        base = locate(f"http://example.com/{path}").url
        location = location_of(base, href)
    except FetchError:
        return

    assert "#" not in location.url
    assert urls.parse(location.url).scheme in ("http", "https")
    # The location equals the one parsed from its own text.
    assert locate(location.url) == location


@given(
    st.sampled_from(["shift_jis", "windows-1252", "gb18030", "iso-2022-jp", "euc-jp", "koi8-r"]),
    st.text("äé日本語ソ表アァ①髙☃€𠮷😀ab+"),
)
def test_a_query_comes_out_as_the_page_has_it(encoding: str, text: str):
    url = resolve("http://example.com/", f"?q={text}", encoding=encoding)

    assert url.isascii()
    # Like browsers, a link has `&#26085;` for a character that the encoding lacks.
    query = decode(unquote_to_bytes(url.partition("?q=")[2]), encoding)
    assert unescape(query) == text


@given(characters, characters)
def test_an_encoding_changes_nothing_but_what_is_not_ascii_in_a_query(path: str, href: str):
    def found(encoding: str) -> str:
        try:
            return resolve(BASE, f"{path}{href}", encoding=encoding)
        except FetchError as error:
            return error.reason

    if f"{path}{href}".partition("#")[0].partition("?")[2].isascii():
        assert found("windows-1252") == found("utf-8")


names = st.text("ab.-_~0%:;@+ \u00e4", max_size=4)
paths = st.lists(names | st.just("..") | st.just("."), max_size=6).map("/".join)
places = st.sampled_from(
    ["http://example.com/", "https://b.example:8080/", "http://EXAMPLE.com:80/", "http://[::1]/"]
)


@given(places, paths, st.sampled_from(["", "/", "../", "../../", "../../../", "?"]), paths)
def test_a_link_that_is_joined_as_text_leads_where_the_parser_has_it(
    place: str, folder: str, up: str, down: str
):
    folder = f"{place}{folder}/"

    joined = urls._resolve_plain(folder, up + down)

    assert joined is None or joined == urls._parse_location(up + down, folder)


@given(places, paths)
def test_a_url_that_is_plain_is_what_the_parser_makes_of_it(place: str, path: str):
    url = place + path

    found = urls._locate_plain(url)

    assert found is None or found == urls._parse_location(url, None) == location_of(BASE, url)


links = st.tuples(
    st.sampled_from(["", " ", "\t", "/", "//", "?", "http:", "HTTPS:", "h\nttp:", "//b.example/"]),
    characters,
).map("".join)


@given(places, paths, st.sampled_from(["", "?", "?q=1"]), links)
def test_what_is_sent_is_what_a_browser_serialises(place: str, path: str, query: str, href: str):
    page = ada_url.URL(f"{place}{path}{query}").href
    try:
        sent = location_of(page, href).url
    except FetchError:
        return

    expected = ada_url.URL(href.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), page)
    expected.hash = expected.username = expected.password = ""
    assert f"{sent}#" == f"{expected.href}#"


spellings = st.lists(
    st.sampled_from(["%7e", "%7E", "~", "%c3%bc", "%C3%BC", "\u00fc", "%3a", ":", "%2f", "b", "/"]),
    max_size=6,
)
parameters = st.lists(st.sampled_from(["a=1", "b=%2F", "b=/", "c", "a=1", "d=%27"]), max_size=4)


@given(spellings, parameters, st.randoms(use_true_random=False))
def test_the_identity_is_one_for_all_spellings(path: list[str], query: list[str], random: Random):
    other = {"%7e": "~", "~": "%7E", "%c3%bc": "\u00fc", "\u00fc": "%C3%BC", "%3a": ":", ":": "%3A"}
    other |= {"%2f": "%2F", "%7E": "%7e", "%C3%BC": "%c3%bc"}
    values = {"b=%2F": "b=/", "b=/": "b=%2f", "d=%27": "d='"}
    shuffled = [values.get(each, each) for each in query]
    random.shuffle(shuffled)

    one = locate(f"http://example.com/{''.join(path)}?{'&'.join(query)}")
    other_path = "".join(other.get(each, each) for each in path)
    two = locate(f"HTTP://EXAMPLE.com.:80/{other_path}?{'&'.join(shuffled)}")

    assert (one.canonical, one.host) == (two.canonical, two.host)


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("http://example.com", "c4b2f5376429737da767039d661d49a4"),
        ("http://example.com./a", "c4b2f5376429bcce0b7c0a7b2a494494"),
        (
            "https://www.example.com/wiki/T%C3%BCr_%28x%29?b=2&a=1",
            "82f87de99341346ee2528195d1e08c7e",
        ),
        ("http://example.com/a:b", "c4b2f5376429128e670543aceb588419"),
        ("http://example.com/a%3Ab", "c4b2f5376429128e670543aceb588419"),
        ("http://example.com:8080/%7euser/a%2fb?q=%2Fx%3f", "8b9ddad4a8f6ddae047e8f1bc0a9ea34"),
        ("http://example.com/?q=a+b", "c4b2f53764298616b16d01c9a7808077"),
        ("http://example.com/?q=a%20b", "c4b2f5376429f5a8bfd91203c479e659"),
        ("http://example.com/?q=%27x'", "c4b2f537642951f972ade035a7495c94"),
        ("http://example.com/a|b[1]?{x}", "c4b2f53764293292c05558f5561b2042"),
        ("http://example.com/100%?q=%zz", "c4b2f53764293f28b0ce5f828c2483f9"),
        ("http://b\u00fccher.example/\u00fc?\u00e4=\u00f6", "918b5214eafb367a07fd8f63622a1062"),
        ("http://[2001:DB8::1]:81/", "21688610a05f8f6db1bc95286c0d1892"),
        ("http://127.0.0.1:8000/a;b=1,2?x&", "d1ced28c5bc6512e9cd3b94fb7b869da"),
    ],
)
def test_the_tasks_of_an_older_ledger_are_found_again(url: str, identity: str):
    """With another id, the pages of existing ledgers would be fetched again."""
    assert task_id(locate(url)).hex() == identity


@pytest.mark.parametrize(
    ("host", "allowed", "inside"),
    [
        ("example.com", {"example.com"}, True),
        ("www.example.com", {"example.com"}, True),
        ("example.com:8080", {"example.com"}, True),
        ("example.com:8080", {"example.com:8080"}, True),
        ("example.com", {"example.com:8080"}, False),
        ("badexample.com", {"example.com"}, False),
        ("example.com.evil.com", {"example.com"}, False),
        ("example.com", {"www.example.com"}, False),
        ("anything.org", {"*"}, True),
        ("anything.org", set(), False),
        ("com", {"com"}, True),
        ("[::1]:8080", {"[::1]"}, True),
        ("[::1]", {"[::2]"}, False),
        ("127.0.0.1:80", {"127.0.0.1"}, True),
        ("", {"example.com"}, False),
    ],
)
def test_what_is_in_scope(host: str, allowed: set[str], inside: bool):
    assert in_scope(host, frozenset(allowed)) is inside


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://a.example/b/c?d", "http://a.example"),
        ("https://a.example:8443/", "https://a.example:8443"),
        ("http://a.example?b=/c", "http://a.example"),
        ("http://[::1]:8080/a", "http://[::1]:8080"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str):
    assert urls.origin_of(url) == origin
