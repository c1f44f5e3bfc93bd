"""Requests of a spider, and their tasks."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import Spider
from crawlcw.errors import FetchError, Reason, SpiderError
from crawlcw.model.urls import MAX_LENGTH
from tests.support.ledgers import START

pytestmark = pytest.mark.quick

URL = "http://a.example/page"


class Books(Spider):
    def parse_book(self, response: Response) -> None: ...

    def give_up(self, request: Request, error: FetchError) -> None: ...


def test_a_url_alone_is_a_get_for_parse():
    request = Request(URL)

    assert (request.method, request.callback, request.errback) == ("GET", "parse", None)
    assert (request.headers, request.body, request.context) == ((), None, None)
    assert (request.priority, request.dont_filter) == (0, False)


def test_callbacks_are_kept_by_name():
    request = Request(URL, Books().parse_book, errback=Books().give_up)

    assert (request.callback, request.errback) == ("parse_book", "give_up")
    assert Request(URL, "parse_book").callback == "parse_book"


@pytest.mark.parametrize(
    "callback",
    [
        lambda response: None,
        test_callbacks_are_kept_by_name,
        Books.parse_book,
    ],
)
def test_what_cannot_be_found_again_by_its_name_is_no_callback(callback: Any):
    with pytest.raises(SpiderError, match="takes a method of the spider or its name, not"):
        Request(URL, callback)
    with pytest.raises(SpiderError, match=r"Request\(errback=\.\.\.\)"):
        Request(URL, errback=callback)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": None}, "url=...) takes text, not NoneType"),
        ({"priority": 101}, "must be a whole number, -100 to 100"),
        ({"priority": "high"}, "must be a whole number"),
        ({"method": "GET\r\nX: y"}, "is not an HTTP method"),
        ({"body": b"x", "json": {}}, "takes one of body, json and data"),
        ({"body": {"a": 1}}, "body=...) takes bytes or text, not dict"),
        ({"headers": "X-A: 1"}, "headers=...) takes a mapping or pairs, not a value of type str"),
        ({"headers": ["X-A", "1"]}, "headers=...) takes a mapping, or pairs of a name and"),
        ({"headers": {"X-A": None}}, "headers=...): 'X-A' is None: write its name and value"),
        ({"cookies": "a=1"}, "cookies=...) takes a mapping, not a value of type str"),
        ({"data": "a=1"}, "data=...) takes a mapping or pairs, not a value of type str"),
        ({"data": {"a": None}}, "data=...): 'a' is None: write '' for an empty field"),
        ({"data": {"a": object()}}, "data=...): 'a' is an object: make it text"),
        ({"json": {"a": object()}}, "json=...): Object of type object is not JSON serializable"),
        ({"context": ["a"]}, "context=...) takes a mapping, not a value of type list"),
        ({"context": {"a": {"b": object()}}}, "context=...): 'a.b' is an object: make it text"),
        (
            {"context": {"a": Response(URL, request=Request(URL))}},
            "context=...): 'a' is a Response: did you mean .url",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_one_clear_error(options: dict[str, Any], message: str):
    with pytest.raises(SpiderError) as caught:
        Request(**{"url": URL} | options)

    assert message in str(caught.value)


def test_json_is_posted():
    request = Request(URL, json={"page": 2, "tags": ["ü"]})

    assert request.method == "POST"
    assert json.loads(request.body or b"") == {"page": 2, "tags": ["ü"]}
    assert request.headers == (("Content-Type", "application/json"),)


def test_form_fields_are_posted():
    request = Request(URL, data={"q": "a b&c", "tag": ["x", "y"]})

    assert request.method == "POST"
    assert request.body == b"q=a+b%26c&tag=x&tag=y"
    assert Request(URL, data=[("tag", "x"), ("tag", 2)]).body == b"tag=x&tag=2"  # type: ignore[arg-type]
    assert request.headers == (("Content-Type", "application/x-www-form-urlencoded"),)


@pytest.mark.parametrize(
    "changed",
    [
        "2026-01-01",
        datetime(2026, 1, 1),  # noqa: DTZ001  # the mistake
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    ],
)
def test_a_time_of_change_that_no_ledger_holds_is_refused(changed: Any):
    with pytest.raises(
        SpiderError, match=r"^Request\(changed=.*must be a time with a time zone, in the years"
    ):
        Request(URL, changed=changed)


def test_headers_are_a_mapping_or_pairs():
    pairs = (("X-A", "1"), ("X-A", "2"))

    assert Request(URL, headers=pairs).headers == pairs
    assert Request(URL, headers={"X-A": "1"}).headers == (("X-A", "1"),)
    assert Request(URL, headers=iter([["X-A", 5]])).headers == (("X-A", "5"),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["a\r\nX-B: b", "a\nb", "a\rb", "a\0b", "a\x7f", "a\x1b[m", "\ud800"]
)
def test_a_header_value_of_more_than_a_line_of_text_is_refused(value: str):
    said = re.escape("the value of X-A is not one line of text")
    with pytest.raises(SpiderError, match=said):
        Request(URL, headers={"X-A": value})
    with pytest.raises(SpiderError, match=said):
        Request(URL).set_header("X-A", value)

    request = Request(URL)
    request.headers = {"X-A": value}  # type: ignore[assignment]
    with pytest.raises(SpiderError, match=said):
        request.task(now=datetime.now(UTC))


@pytest.mark.parametrize("name", ["", "X A", "X-A:", "X-A\r\n", "é", "X-A\n"])
def test_a_header_name_that_is_no_token_is_refused(name: str):
    with pytest.raises(SpiderError, match=r"is not the name of a header"):
        Request(URL, headers={name: "a"})


def test_a_header_is_set_in_place_of_those_of_its_name():
    request = Request(URL, headers=[("x-a", "1"), ("X-B", "2"), ("X-A", "3")])

    request.set_header("X-A", "4")
    assert request.headers == (("X-B", "2"), ("X-A", "4"))

    request.headers = {"x-b": "5", "X-C": "6"}  # type: ignore[assignment]
    request.set_header("X-B", "7")
    assert request.headers == (("X-C", "6"), ("X-B", "7"))


def test_a_task_is_made_of_all_of_a_request_and_back_again():
    request = Request(
        f"{URL}#part",
        "parse_book",
        method="PUT",
        headers={"X-A": "1"},
        body=b"body",
        context={"page": 1},
        priority=7,
        errback="give_up",
    )

    task = request.task(now=START, depth=3, parent=b"parent")

    assert task.url == URL
    assert (task.host, task.depth, task.parent) == ("a.example", 3, b"parent")
    assert (task.due, task.update_time, task.create_time) == (START, START, START)
    again = Request.of(task)
    assert {name: getattr(again, name) for name in Request.__slots__} == {
        name: getattr(request, name) for name in Request.__slots__
    } | {"url": URL}


def test_the_context_is_cleaned_for_the_ledger():
    moment = datetime(2026, 1, 1, 12, 0, 0, 1234, tzinfo=UTC)

    task = Request(URL, context={"n": 1 << 70, "when": moment, "set": {1}}).task(now=START)

    assert task.context == {
        "n": str(1 << 70),
        "when": moment.replace(microsecond=1000),
        "set": [1],
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Request(URL), Request(f"{URL}#part")),
        (Request(URL), Request("HTTP://A.example:80/page")),
        (Request(f"{URL}?a=1&b=2"), Request(f"{URL}?b=2&a=1")),
        (Request(URL), Request(URL, "parse_book", headers={"X": "y"}, priority=3)),
        (Request(URL, json={"a": 1}), Request(URL, json={"a": 1}, context={"x": 1})),
    ],
)
def test_the_same_request_has_the_same_identity(one: Request, other: Request):
    assert one.identity()[1] == other.identity()[1]


def test_another_method_body_or_address_is_another_task():
    requests = [
        Request(URL),
        Request(f"{URL}/"),
        Request(f"{URL}?a=1"),
        Request(URL, method="HEAD"),
        Request(URL, method="POST"),
        Request(URL, json={"a": 1}),
        Request(URL, json={"a": 2}),
        Request("https://a.example/page"),
    ]

    assert len({request.identity()[1] for request in requests}) == len(requests)


def test_a_salt_counts_only_where_filtering_is_off():
    assert Request(URL).identity(b"salt") == Request(URL).identity()
    request = Request(URL, dont_filter=True)
    assert request.identity(b"1")[1] != request.identity(b"2")[1] != Request(URL).identity()[1]
    assert request.identity(b"1")[1] == request.task(now=START, salt=b"1").id


def test_a_fingerprint_identifies_a_request_in_place_of_method_url_and_body():
    request = Request(URL, fingerprint=b"book 7")
    same = Request(f"{URL}?from=list", json={"a": 1}, fingerprint=b"book 7")

    assert same.identity()[1] == request.identity()[1] == request.task(now=START).id
    others = [
        Request(URL),
        Request(URL, fingerprint=b"book 8"),
        Request("https://b.example/page", fingerprint=b"book 7"),
        request.retargeted(f"{URL}/moved"),
        Request.of(request.task(now=START)),
    ]
    assert request.identity()[1] not in {other.identity()[1] for other in others}


@pytest.mark.parametrize("fingerprint", [b"", "text", 7])
def test_a_fingerprint_is_bytes(fingerprint: Any):
    with pytest.raises(SpiderError, match="must be bytes"):
        Request(URL, fingerprint=fingerprint)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mailto:me@a.example", Reason.REFUSED_SCHEME),
        ("http://", Reason.URL_INVALID),
        ("http://a.example/" + "x" * MAX_LENGTH, Reason.URL_TOO_LONG),
    ],
)
def test_a_url_that_cannot_be_fetched_is_named_when_a_task_is_made(url: str, reason: Reason):
    request = Request(url)

    with pytest.raises(FetchError) as caught:
        request.task(now=START)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("cb_kwargs", "context="),
        ("meta", "context="),
        ("follow_redirects", "accept_statuses="),
    ],
)
def test_an_argument_of_another_framework_is_told_its_name_here(name: str, instead: str):
    with pytest.raises(
        SpiderError, match=rf"Request\({name}=...\) means nothing here: write "
    ) as e:
        Request(URL, **{name: {}})  # type: ignore[arg-type]
    assert instead in str(e.value)


def test_an_argument_that_nobody_knows_is_told_the_nearest():
    with pytest.raises(SpiderError, match=r"no argument contex=: did you mean context=\?"):
        Request(URL, contex={})  # type: ignore[arg-type]
    with pytest.raises(SpiderError, match="no argument zzz=: `crawlcw guide requests`"):
        Response(URL, request=Request(URL)).follow("/x", zzz=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "must be longer than 0 s"),
        ({"timeout": "soon"}, "'soon' is not a duration"),
        ({"max_retry": 0}, "must be a whole number, 1 or more"),
        ({"max_depth": -1}, "must be a whole number, 0 or more"),
        ({"accept_statuses": [40]}, r"\[40\] is not a list of HTTP statuses"),
        ({"retry_statuses": 4.5}, "4.5 is not a list of HTTP statuses"),
    ],
)
def test_what_a_request_cannot_ask_for(options: dict[str, Any], said: str):
    with pytest.raises(SpiderError, match=said):
        Request(URL, **options)


def test_options_go_with_a_request_to_its_task_and_back():
    asked = Request(URL, timeout=5, accept_statuses=range(400, 403), max_depth=3)

    task = asked.task(now=START)
    assert Request.of(task).options == asked.options == asked.retargeted(f"{URL}/x").options
    assert task.options.accept_statuses == (400, 401, 402)
