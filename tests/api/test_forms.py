"""Forms of a page, filled in and submitted."""

import sys
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import FetchError, Reason, SpiderError

pytestmark = pytest.mark.quick

URL = "http://a.example/in/login"
LOGIN = """
<form action=/search><input name=q></form>
<form id=login action="session?x=1" method=POST>
  <input type=hidden name=csrf value="t&amp;1"><input name=user value=nobody>
  <input type=password name=password><input type=checkbox name=stay checked>
  <input type=checkbox name=spam>
  <select name=lang><option value=de><option value=en selected></select>
  <button name=go value=in>Log in</button><button name=go value=guest class=guest>Guest</button>
</form>
<form id=file method=post enctype="multipart/form-data"><input type=file name=f></form>
<form id=odd action="javascript:send()" method=post><input name=a value=1></form>
"""


def page(body: str = LOGIN) -> Response:
    return Response(URL, request=Request(URL), body=body.encode())


def test_a_form_is_submitted_with_what_the_page_gives_it():
    request = page().form("#login", "parse_home", context={"n": 1}).submit(user="u", password="p&w")

    assert (request.method, request.url) == ("POST", "http://a.example/in/session?x=1")
    assert request.body == b"csrf=t%261&stay=on&lang=en&user=u&password=p%26w&go=in"
    assert ("Content-Type", "application/x-www-form-urlencoded") in request.headers
    assert (request.callback, request.context) == ("parse_home", {"n": 1})


def test_a_form_by_get_is_a_url():
    assert page().form().submit(q="tea & cake").url == "http://a.example/search?q=tea+%26+cake"
    assert page().form().submit(q="x").method == "GET"


@pytest.mark.parametrize(
    ("click", "end"), [(None, b"go=in"), (".guest", b"go=guest"), (False, b"password=")]
)
def test_one_button_is_clicked_or_none(click: Any, end: bytes):
    body = page().form("#login", click=click).submit().body or b""

    assert body.endswith(end) or (click is False and b"go=" not in body)


def test_any_field_can_be_named_and_left_out():
    form = page().form("#login", click=False)

    request = form.submit({"user[name]": ["a", "b"], "callback": "x"}, stay=None, user=7)

    assert request.body == (
        b"csrf=t%261&password=&lang=en&user%5Bname%5D=a&user%5Bname%5D=b&callback=x&user=7"
    )
    assert form.fields["csrf"] == "t&1"


def test_a_base_counts():
    based = page("<head><base href=/other/></head><form action=x></form>")

    assert based.form().submit().url == "http://a.example/other/x"


def test_a_form_that_leads_nowhere_is_dropped_by_the_crawl():
    request = page().form("#odd").submit()

    with pytest.raises(FetchError) as caught:
        request.identity()
    assert caught.value.reason is Reason.REFUSED_SCHEME


def test_what_cannot_be_submitted_is_told():
    with pytest.raises(ValueError, match="the page has no form '#nothing'"):
        page().form("#nothing")
    with pytest.raises(ValueError, match="'button' is a <button>, and no form"):
        page().form("button")
    with pytest.raises(ValueError, match=r"has no button '\.no'"):
        page().form("#login", click=".no").submit()
    with pytest.raises(ValueError, match="the form sends files"):
        page().form("#file").submit()


def test_without_form2request_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "form2request", None)

    with pytest.raises(SpiderError, match=r"pip install 'crawlcw\[forms\]'"):
        page().form().submit(q="x")
