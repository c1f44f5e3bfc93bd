"""Forms of a page, filled in and submitted."""

import sys
import time
from typing import Any

import pytest

from crawlcw.api import markup
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import FetchError, Reason

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
    assert request.body == b"csrf=t%261&user=u&password=p%26w&stay=on&lang=en&go=in"
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
        b"csrf=t%261&user=7&password=&lang=en&user%5Bname%5D=a&user%5Bname%5D=b&callback=x"
    )
    assert form.fields == {
        "csrf": "t&1",
        "user": "nobody",
        "password": "",
        "stay": "on",
        "spam": None,
        "lang": "en",
    }
    assert page("<form><input name=a value=1><input name=a value=2>").form().fields == {
        "a": ["1", "2"]
    }


def test_a_base_counts_but_for_a_form_that_leads_to_its_own_page():
    base = "<head><base href=/other/></head>"

    assert page(f"{base}<form action=x></form>").form().submit().url == "http://a.example/other/x?"
    assert page(f"{base}<form action=''></form>").form().submit().url == f"{URL}?"
    assert page(f"{base}<form></form>").form().submit().url == f"{URL}?"


def sent(fields: str, *, click: Any = None, given: dict[str, Any] | None = None) -> str:
    form = page(f"<form method=post>{fields}</form>").form(click=click)
    return (form.submit(given).body or b"").decode()


def seconds_to_submit(tags: str) -> float:
    """Return the CPU time of submitting a form whose fields are behind these tags."""
    form = page(f"<form>{tags}" + "<input name=a>" * 10_000).form()
    began = time.process_time()
    form.submit()
    return time.process_time() - began


@pytest.mark.parametrize(
    "unit", ["<fieldset disabled>", "<fieldset disabled><legend>", "<legend>", "<p dir=auto>x"]
)
def test_a_form_that_is_nested_without_end_takes_no_longer_than_a_flat_one(unit: str):
    # In turns, for a busy machine slows down one of both more at some moments.
    assert any(
        seconds_to_submit(unit * 900) < 4 * seconds_to_submit("<b></b>" * 900) for _ in range(5)
    )


@pytest.mark.parametrize("text", ["x", "x ", "- ", "-x", " "])
def test_no_text_takes_long_to_wrap(text: str):
    form = page(f"<form><textarea name=t wrap=hard cols=1>{text * (400_000 // len(text))}").form()
    began = time.process_time()

    assert form.submit().url
    assert time.process_time() - began < 2


# --- HTML standard, "constructing the entry list"


def test_a_button_without_a_value_has_an_empty_one():
    assert sent("<button name=login>Log in</button>") == "login="
    assert sent("<input type=submit name=login>") == "login="


def test_what_is_given_for_a_button_takes_the_place_of_its_value():
    button = "<button name=go value=in>"

    assert sent(button, given={"go": "out"}) == "go=out"
    assert sent(button, given={"go": None}) == ""
    assert sent(button, click=False, given={"go": "out"}) == "go=out"


def test_a_button_that_is_none_for_submitting_is_never_sent():
    fields = (
        "<input type=button name=a value=1><input type=RESET name=b><button type=button name=c>"
    )

    assert sent(fields + "<button type=odd name=d value=4>") == "d=4"
    assert sent(fields) == ""


@pytest.mark.parametrize(("name", "body"), [(" name=map", "map.x=0&map.y=0"), ("", "x=0&y=0")])
def test_a_picture_that_is_clicked_sends_the_place(name: str, body: str):
    assert sent(f"<input type=image value=v{name}>") == body


def test_disabled_fields_are_left_out():
    fields = """
        <input name=a value=1 disabled><textarea name=b disabled></textarea>
        <fieldset disabled>
          <legend><input name=c value=3></legend>
          <legend><input name=d value=4></legend><select name=e><option>5</select>
          <fieldset><input name=f value=6></fieldset>
        </fieldset>
        <datalist><input name=g value=7></datalist>
    """

    assert sent(fields) == "c=3"


def test_a_textarea_loses_its_first_line_end_and_no_other():
    assert sent("<textarea name=t>\n\na\n</textarea>") == "t=%0D%0Aa%0D%0A"
    assert sent("<textarea name=t>\r\na</textarea>") == "t=a"
    assert page("<form><textarea name=t>\na</textarea></form>").form().fields == {"t": "a"}


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_line_ends_are_those_of_the_internet(end: str):
    given = {"text": f"a{end}b", f"n{end}m": "1", "many": [f"{end}", "x"]}

    body = sent("<textarea name=text></textarea>", given=given)

    assert body == "text=a%0D%0Ab&n%0D%0Am=1&many=%0D%0A&many=x"


def test_a_line_of_text_has_no_line_ends():
    assert sent("<input name=a value='1\n2'><input type=hidden name=b value='1\n2'>") == (
        "a=12&b=1%0D%0A2"
    )


def test_of_a_select_those_options_are_sent_that_a_browser_shows_as_selected():
    assert sent("<select name=s><option disabled>a<option> b  c </select>") == "s=b+c"
    assert sent("<select name=s size=2><option>a</select>") == ""
    assert sent("<select name=s><option selected>a<option selected value=>b</select>") == "s="
    assert sent("<select name=s><optgroup disabled><option>a</optgroup><option>b</select>") == "s=b"
    assert sent("<select name=s multiple><option selected>a<option disabled selected>b"
                "<option selected>c</select>") == "s=a&s=c"  # fmt: skip


def test_of_radio_buttons_the_last_one_that_is_checked_counts():
    radio = "<input type=radio name=r value={}>"
    fields = "".join(radio.format(v) for v in ("1 checked", "2 checked", "3"))

    assert sent(fields + "<input type=Checkbox name=c checked><input type=checkbox name=d>") == (
        "r=2&c=on"
    )


def test_fields_elsewhere_may_be_of_the_form_and_those_in_it_of_another():
    both = page(
        "<form id=f><input name=a value=1><input name=b value=2 form=g></form>"
        "<form id=g></form><input name=c value=3 form=f><button form=f name=d value=4></button>"
        "<button form=f name=e value=5 class=other>"
    )

    assert both.form("#f").submit().url.partition("?")[2] == "a=1&c=3&d=4"
    assert both.form("#f", click=".other").submit().url.partition("?")[2] == "a=1&c=3&e=5"
    assert both.form("#g").submit().url.partition("?")[2] == "b=2"


def in_cyrillic(more: str = "") -> Response:
    body = f"<meta charset=windows-1251><form method=post{more}><input name=q value=да></form>"
    return Response(URL, request=Request(URL), body=body.encode("cp1251"))


def test_text_is_sent_in_the_encoding_of_its_page():
    assert in_cyrillic().form().submit().body == b"q=%E4%E0"
    assert in_cyrillic().form().submit(q="\N{SNOWMAN}").body == b"q=%26%239731%3B"
    assert in_cyrillic().form().submit(q="\ud83d").body == b"q=%26%2365533%3B"
    assert in_cyrillic(" accept-charset='x, utf-8'").form().submit().body == b"q=%D0%B4%D0%B0"
    japanese = in_cyrillic(" accept-charset=euc-jp").form()
    assert japanese.submit(q="①\uff5e").body == b"q=%AD%A1%A1%C1"
    assert in_cyrillic(" accept-charset=gb2312").form().submit(q="€").body == b"q=%80"


@pytest.mark.parametrize("early", ["<p>x</p></html>\n", "</HTML >", "<head></head></html><body>"])
def test_a_form_behind_an_early_end_of_the_page_is_found(early: str):
    script = "<script>document.write('</html><b>')</script><!-- </html> -->"
    found = page(f"<html>{script}{early}<form><input name=a value=1></form></body></html>")

    assert found.form().submit().url.partition("?")[2] == "a=1"
    assert found.selector.xpath("//script/text()").get() == "document.write('</html><b>')"
    assert found.selector.xpath("//comment()").get() == "<!-- </html> -->"


def test_a_form_that_leads_nowhere_is_dropped_by_the_crawl():
    request = page().form("#odd").submit()

    with pytest.raises(FetchError) as caught:
        request.identity()
    assert caught.value.reason is Reason.REFUSED_SCHEME


def test_what_cannot_be_submitted_is_told():
    with pytest.raises(ValueError, match="the page has no form '#nothing'"):
        page().form("#nothing")
    with pytest.raises(ValueError, match="'button' is a <button>, not a form"):
        page().form("button")
    with pytest.raises(ValueError, match=r"has no button '\.no'"):
        page().form("#login", click=".no").submit()
    with pytest.raises(ValueError, match="cannot send a form with files"):
        page().form("#file").submit()
    for css in ("form[", "form::text"):
        with pytest.raises(ValueError, match=r"CSS|work only in"):
            page().form(css)


def test_a_form_needs_no_parsel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "parsel", None)

    assert page().form().submit(q="x").url == "http://a.example/search?q=x"


@pytest.mark.parametrize(
    "unit", ["<form>", "<form a='", "<input", "<template>", "<textarea", "<!--", "<form><input>"]
)
def test_the_forms_of_no_page_take_long_to_find(unit: str):
    body = unit.encode() * (1_000_000 // len(unit))
    began = time.process_time()

    markup.with_form_owners(body)

    assert time.process_time() - began < 1


# --- Measured with Chromium 156, by GET and POST

F, TOKEN = "<form id=f method={}>", "<input type=hidden name=token value=t>"
A, B = (f"<input name={name} value={name}>" for name in "ab")
OWNERS = [
    (f"<div>{F}{A}</div>{TOKEN}<button name=go value=1></form>{B}", "a=a&token=t&go=1"),
    (f"<table><tr><td>{F}{A}</td><td>{TOKEN}</td></tr></table></form>{B}", "a=a&token=t"),
    (f"<table><tr>{F}<td>{A}</td></tr></form></table>{B}", "a=a"),
    (f"{F}{A}<form action=/t>{TOKEN}</form>{B}", "a=a&token=t"),
    (f"{F}<div></form>{A}</div>{B}", "a=a"),
    (f"{F}{A}<p><form action=/x>{B}<div></form>{TOKEN}</div>", "a=a&b=b&token=t"),
    (f"{F}<template></form><input name=t><form><input name=u></form></template>{A}", "a=a"),
    (f"{F}<!-- </form> --><script>'</form>'</script><p title='</form>'>{A}", "a=a"),
    (f"{F}<textarea name=t></form></textarea>{A}", "t=%3C%2Fform%3E&a=a"),
    (f"{F}{A}<input name=o form=g><input name=e form></form><input name=c form=f>", "a=a&c="),
    (f"<p id=f></p>{F.replace('id', 'class=x id')}{A}<input name=c form=f></form>", "a=a"),
    (f"{F}<div><template shadowrootmode=open>{B}</template></div>{A}", "a=a"),
    (f"{F}<noscript>{B}</noscript>{A}", "a=a"),
]  # fmt: skip


def inputs(kind: str, *values: str) -> str:
    fields = (f"<input type='{kind}' name={n} value='{value}'>" for n, value in enumerate(values))
    return F + "".join(fields)


def sliders(*attributes: str) -> str:
    return F + "".join(f"<input type=range name={n} {each}>" for n, each in enumerate(attributes))


def directed(*controls: str) -> str:
    return F + "".join(f"{each} dirname=d{n}>" for n, each in enumerate(controls))


FOX = "The quick brown fox jumps over the lazy dog"
VALUES = [
    (F + "<input type=hidden name=_Charset_ value=x><input name=_charset_>",
     "_Charset_=UTF-8&_charset_="),
    (F.replace("id", "accept-charset=sjis id") + "<input type=hidden name=_charset_>",
     "_charset_=Shift_JIS"),
    (F.replace("id", "accept-charset=latin1 id") + "<input type=hidden name=_charset_>",
     "_charset_=windows-1252"),
    (F.replace("id", "accept-charset=utf-16 id") + "<input type=hidden name=_charset_>",
     "_charset_=UTF-8"),
    (F + "<select name=s><option selected>&nbsp;x&nbsp;y \n z </select>"
     "<select name=l><option label=L>Text<script>x</script></select>", "s=%C2%A0x%C2%A0y+z&l=Text"),
    (F + "".join(f"<select name={n} size='{size}'><option>1</select>"
                 for n, size in enumerate(("3", "x", "1.5", "-3", "0", " 2x"))),
     "1=1&2=1&3=1&4=1"),
    (F + "<input type=radio name=a value=1 checked><input type=radio name=a checked disabled>", ""),
    (directed("<input name=a value=x", "<input type=number name=b",
              "<input name=c dir=auto value='1 \u05d0x'", "<textarea name=e dir=auto"),
     "a=x&d0=ltr&b=&c=1+%D7%90x&d2=rtl&e=&d3=ltr"),
    ("<div dir=rtl>" + directed("<input name=a dir=odd", "<input type=tel name=b",
                                "<input name=c dir=ltr"), "a=&d0=rtl&b=&d1=ltr&c=&d2=ltr"),
    (sliders("", "value=x", "value=200", "value=-5", "min=10 max=20", "min=10 max=5 value=20"),
     "0=50&1=50&2=100&3=0&4=15&5=10"),
    (sliders("min=0 max=1 step=0.1", "min=3 step=5 value=9", "step=any value=1.5", "value=1.5",
             "min=0.3 max=0.9 step=0.2", "min=-1 max=0", "max=10 min=0 step=3", "step=0 value=.5"),
     "0=0.5&1=8&2=1.5&3=1.5&4=0.7&5=0&6=6&7=0.5"),
    (inputs("number", "many", "-1.5", "+1", ".5", "1.", "1E3", " 1", "1e400", "0x1", "1e9999"),
     "0=&1=-1.5&2=&3=.5&4=&5=1E3&6=&7=&8=&9="),
    (inputs("color", "", "#ABCDEF", "#abc", " #aabbccdd ", "#12345", "odd"),
     "0=%23000000&1=%23abcdef&2=%23aabbcc&3=%23aabbcc&4=%23000000&5=%23000000"),
    (inputs("email", " a@b\n ", "\u00a0x"), "0=a%40b&1=%C2%A0x"),
    (inputs("email' multiple type='", " a@b , c,, d \n e"), "0=a%40b%2Cc%2C%2Cd++e"),
    (inputs("URL", " http://x/ y\n"), "0=http%3A%2F%2Fx%2F+y"),
    (inputs(" text", " x\r\n\ty "), "0=+x%09y+"),
    (inputs("date", "2020-02-29", "2021-02-29", "Desde", "0000-01-01", "10000-01-31", " 2020-01-01",
            "2020-13-01"), "0=2020-02-29&1=&2=&3=&4=10000-01-31&5=&6="),
    (inputs("month", "2020-12", "2020-13", "2020-1"), "0=2020-12&1=&2="),
    (inputs("week", "2020-W53", "2021-W53", "2020-w01"), "0=2020-W53&1=&2="),
    (inputs("time", "10:00", "24:00", "10:00:00.50", "1:00"), "0=10%3A00&1=&2=10%3A00%3A00.50&3="),
    (inputs("datetime-local", "2020-01-01 10:00:00.000", "2020-01-01T10:00:01.500", "2020-01-01",
            "2020-02-30T10:00"), "0=2020-01-01T10%3A00&1=2020-01-01T10%3A00%3A01.5&2=&3="),
    (F + f"<textarea name=t wrap=HARD cols=10>{FOX}</textarea>",
     "t=The+quick+%0D%0Abrown+fox+%0D%0Ajumps+over+%0D%0Athe+lazy+%0D%0Adog"),
    (F + f"<textarea name=t wrap=physical>{FOX}</textarea><textarea name=u cols=5>{FOX}</textarea>",
     "t=The+quick+brown+fox+%0D%0Ajumps+over+the+lazy+%0D%0Adog&u=" + FOX.replace(" ", "+")),
    (F + "<textarea name=t wrap=hard cols=10>abcdefghijklmno 12345678901 x-y\n\nwell-known-thing "
     "</textarea>",
     "t=abcdefghijk%0D%0Almno+%0D%0A12345678901+%0D%0Ax-y%0D%0A%0D%0Awell-known-%0D%0Athing+"),
]  # fmt: skip


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize(("body", "entries"), OWNERS + VALUES)
def test_a_form_sends_what_chromium_sends(body: str, entries: str, method: str):
    request = page("<meta charset=utf-8>" + body.replace("{}", method)).form("form").submit()

    query = request.url.partition("?")[2] if method == "get" else (request.body or b"").decode()
    assert query == entries


def test_a_form_in_a_form_is_none_to_xpath_either():
    response = page(f"{F}{A}<form>{B}</form>")

    assert response.xpath("count(//form)").get() == "1.0"
    assert response.xpath("count(//form//input)").get() == "2.0"
