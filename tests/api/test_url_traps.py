"""URLs that look like crawler traps, and ordinary ones."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.api.links import TrapPolicy
from crawlcw.errors import Reason
from crawlcw.model.urls import locate

pytestmark = pytest.mark.quick

SITE = "http://a.example"
POLICY = TrapPolicy()
NO_LIMITS = TrapPolicy(
    max_length=None, max_path_segments=None, max_segment_repeats=None, max_query_parameters=None
)


def why(address: str, policy: TrapPolicy = POLICY) -> Reason | None:
    return policy.refusal_reason(locate(SITE + address).canonical)


def facets(number: int, separator: str = "&") -> str:
    return "/shoes?" + separator.join(f"facet{n}=on" for n in range(number))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        # A relative link to the next day, on a page that is no folder.
        ("/events/2026/11/20/2026/11/21/2026/11/22/2026/11/23", Reason.TRAP_REPEATED_SEGMENT),
        ("/a/b/a/b/a/b/a/b", Reason.TRAP_REPEATED_SEGMENT),
        ("/css/css/css/css?x=1", Reason.TRAP_REPEATED_SEGMENT),
        ("/%7Ebob/~bob/%7ebob/~bob", Reason.TRAP_REPEATED_SEGMENT),
        # Every answer inserts its session before a path that has one already.
        ("/(S(k2))/shop/(S(x7))/shop/(S(p0))/shop/(S(a4))/shop", Reason.TRAP_REPEATED_SEGMENT),
        ("/" + "/".join(f"S{n:08x}" for n in range(21)), Reason.TRAP_PATH_SEGMENTS),
        ("/news" + 20 * "/", Reason.TRAP_PATH_SEGMENTS),
        (facets(21), Reason.TRAP_QUERY_PARAMETERS),
        (facets(21, ";"), Reason.TRAP_QUERY_PARAMETERS),
        ("/?" + 20 * "&", Reason.TRAP_QUERY_PARAMETERS),
        # Each log-in page links to itself with its own address to return to.
        ("/login?return=" + 400 * "%252F", Reason.URL_TOO_LONG),
    ],
)
def test_a_trap_is_known_by_its_looks(address: str, reason: Reason):
    assert why(address) is reason


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/",
        "/a/b/a/b/a/b",
        "/01/01/01/",
        "/" + "/".join(map(str, range(20))),
        "/news" + 19 * "/",
        facets(20),
        facets(20, ";"),
        "/proxy?url=/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a",
        "/a%2Fa%2Fa%2Fa%2Fa",
        "/a/A/a/A/a/A",
        "/page;v=1/page;v=2/page;v=3/page;v=4",
    ],
)
def test_an_ordinary_url_is_no_trap(address: str):
    assert why(address) is None


# --- any URL

segments = st.lists(
    st.sampled_from(["a", "b", "A", "", "%2F", "a;s=1", "ü", "%C3%BC"]), min_size=1, max_size=12
)
parameters = st.lists(st.sampled_from(["a", "b=1", "c=/x/x"]), max_size=6)
limits = st.none() | st.integers(1, 8)
policies = st.builds(
    TrapPolicy,
    max_length=st.none() | st.integers(20, 80),
    max_path_segments=limits,
    max_segment_repeats=limits,
    max_query_parameters=limits,
)


def url_of(path: list[str], query: list[str], separator: str) -> str:
    text = SITE + "".join(f"/{segment}" for segment in path)
    return locate(f"{text}?{separator.join(query)}" if query else text).url


@given(path=segments, query=parameters, separator=st.sampled_from("&;"), policy=policies)
def test_a_url_is_a_trap_if_and_only_if_a_limit_is_passed(path, query, separator, policy):
    url = url_of(path, query, separator)
    same = Counter("ü" if segment == "%C3%BC" else segment for segment in path if segment)
    measured = {
        Reason.URL_TOO_LONG: (len(url), policy.max_length),
        Reason.TRAP_PATH_SEGMENTS: (len(path), policy.max_path_segments),
        Reason.TRAP_REPEATED_SEGMENT: (max(same.values(), default=0), policy.max_segment_repeats),
        Reason.TRAP_QUERY_PARAMETERS: (len(query), policy.max_query_parameters),
    }
    passed = {reason for reason, (is_, most) in measured.items() if most is not None and is_ > most}

    assert policy.refusal_reason(url) in (passed or {None})
    assert NO_LIMITS.refusal_reason(url) is None


@given(step=segments)
def test_a_path_that_grows_by_what_it_has_ends(step: list[str]):
    """A relative link on a page whose server answers every path."""
    url = f"{SITE}/start"
    pages = 0
    while POLICY.refusal_reason(url) is None:
        url = locate(f"{url}/{'/'.join(step)}").url
        pages += 1

    assert 1 <= pages <= 20
