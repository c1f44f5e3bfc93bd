"""Which pages the HTML parser is not given."""

import time
from contextlib import suppress

import pytest

from crawlcw.api import markup
from crawlcw.errors import ParseRefusedError, Reason

pytestmark = pytest.mark.quick

REFUSED = {
    "deep divs": b"<div>" * 2_001,
    "deep divs in capitals": b"<DIV CLASS=x>" * 2_001,
    "deep tables": b"<table>" * 3_000 + b"</table>",
    "open formatting": b"<p><b>" * 1_000 + b"<i>" * 1_000,
    "options": b"<option>" * 5_001,
    "attributes": b"<a " + b"x=1 " * 20_000 + b">",
    "attributes of a tag left open": b"<p>text</p><a " + b"x=1 " * 20_000,
}
PASSED = {
    "nothing": b"",
    "text": b"a < b " * 100_000,
    "a long list": b"<ul>" + b"<li><a href=x>y</a></li>" * 20_000 + b"</ul>",
    "a list without end tags": b"<ul>" + b"<li>x" * 20_000 + b"</ul>",
    "line breaks": b"<br>" * 50_000,
    "wide": b"<div></div>" * 50_000,
    "2,000 deep": b"<div>" * 2_000 + b"</div>" * 2_000,
    "a picture in an attribute": b"<img src='data:image/png;base64," + b"A" * 1_000_000 + b"'>",
    "a script": b"<script>" + b"if (a < b) {} " * 50_000 + b"</script>",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_page_that_would_hang_the_parser_is_refused(name: str):
    with pytest.raises(ParseRefusedError) as caught:
        markup.screen(REFUSED[name])

    assert caught.value.reason is Reason.PARSE_KILLED
    assert "over " in caught.value.message


@pytest.mark.parametrize("name", PASSED)
def test_a_page_that_means_well_is_let_through(name: str):
    markup.screen(PASSED[name])


@pytest.mark.thorough
@pytest.mark.representative("body1")
@pytest.mark.parametrize("body", [b"<" * (4 << 20), b"<div " * (1 << 20), b"<b>" * (1 << 20)])
def test_screening_itself_is_quick(body: bytes):
    started = time.process_time()
    with suppress(ParseRefusedError):
        markup.screen(body)

    assert time.process_time() - started < 5
