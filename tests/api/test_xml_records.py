"""Reader of XML lists of records: tolerated faults, and refused documents.

HOSTILE 3.16, 3.17 and the token of 3.18: no file is fetched, no entity is declared, no text is
shortened, and the limits bound memory and time.
"""

import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.api.xml_records import Record, records
from crawlcw.errors import Reason, XmlError

pytestmark = pytest.mark.quick

OF = {"list": frozenset({"entry"})}


def read(*pieces: str) -> list[Record]:
    return list(records(pieces, names_by_root=OF, label="list"))


def links(*pieces: str) -> list[str]:
    return [record.text("loc") for record in read(*pieces)]


def read_until_it_fails(*pieces: str) -> tuple[list[str], XmlError]:
    """Return the records before the error, and the error."""
    found = []
    with pytest.raises(XmlError) as raised:
        for record in records(pieces, names_by_root=OF, label="list"):
            found.append(record.text("loc"))
    return found, raised.value


def test_a_record_has_the_fields_that_are_its_children():
    (record,) = read(
        "<s:list><s:entry id='7'><s:loc> a </s:loc><image:x><image:loc>b</image:loc></image:x>"
        "<xhtml:link rel='alternate' href='c'/></s:entry></s:list>"
    )

    assert record.attributes == {"id": "7"}
    assert [field.name for field in record.fields] == ["loc", "image:x", "xhtml:link"]
    assert record.text("loc") == "a"
    assert record.fields[2].attributes == {"rel": "alternate", "href": "c"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a?b=1&c=2", "a?b=1&c=2"),
        ("a?b=1&amp;c=2", "a?b=1&c=2"),
        ("a?b&nbsp;c&eacute;", "a?b\xa0c\xe9"),
        ("a&undefined;b", "a&undefined;b"),
        ("a&#38;b&#x26;c", "a&b&c"),
        ("a&#0;&#xFFFE;&#xD800;&#x110000;b", "ab"),
        ("a\x01\x0bb", "ab"),
        ("<![CDATA[a?b=1&c=2&amp;d]]>", "a?b=1&c=2&amp;d"),
        ("<![CDATA[<b>&nbsp;]]>&amp;", "<b>&nbsp;&"),
        ("&lt;b&gt;&quot;&apos;", "<b>\"'"),
        ("caf\xe9\U0001f600", "caf\xe9\U0001f600"),
    ],
)
def test_what_generators_do_wrong_is_read_as_it_was_meant_wherever_pieces_end(
    written: str, meant: str
):
    text = f"\n <?xml version='1.0'?><list><entry><loc>{written}</loc></entry></list>"

    assert links(text) == [meant]
    assert links(*text) == [meant]


@given(st.lists(st.text("&;#amplt<![CDATA[]]>x1 ", max_size=8), max_size=8))
def test_any_text_in_any_pieces_is_records_or_an_error_and_the_same_as_in_one(pieces: list[str]):
    def outcome(pieces: list[str]) -> tuple[list[str], bool]:
        whole = ["<list><entry><loc>y</loc></entry><entry><loc>", *pieces, "</loc></entry></list>"]
        found = []
        try:
            found += links(*whole)
        except XmlError:
            return found, True
        return found, False

    assert outcome(pieces) == outcome(["".join(pieces)])


@pytest.mark.parametrize(
    "dtd",
    [
        "<!DOCTYPE list [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;'>]>",
        "<!DOCTYPE list [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>",
        "<!DOCTYPE list SYSTEM 'http://127.0.0.1:9/x' [<!ENTITY % p SYSTEM 'y'> %p;]>",
        "<!DOCTYPE list [<!ELEMENT list ANY><!ENTITY b SYSTEM 'y' NDATA z>]>",
        "<!DOCTYPE list [" + "<!ATTLIST entry a CDATA 'x'>" * 1000 + "]>",
    ],
)
def test_a_document_that_could_declare_entities_is_not_read(dtd: str):
    found, error = read_until_it_fails(f"{dtd}<list><entry><loc>&b;&x;</loc></entry></list>")

    assert found == []
    assert error.reason is Reason.XML_UNSAFE


def test_a_dtd_without_entities_does_no_harm():
    dtd = """<!DOCTYPE list PUBLIC "a" "http://127.0.0.1:9/x" [
        <!-- what a generator adds -->
        <!ELEMENT list (entry*)><!ATTLIST entry kind CDATA "none" xml:lang CDATA #IMPLIED>
        <!NOTATION gif SYSTEM "viewer">]>"""

    assert links(f"{dtd}<list><entry><loc>/1?a&amp;b</loc></entry></list>") == ["/1?a&b"]
    (found,) = read(f"{dtd}<list><entry/></list>")
    assert found.attributes == {}


def test_an_attribute_of_a_dtd_costs_no_record_anything():
    dtd = "<!DOCTYPE list [" + f"<!ATTLIST entry a{'b' * 1000} CDATA '{'x' * 500_000}'>" * 2 + "]>"
    tracemalloc.start()
    began = time.process_time()

    assert len(list(read(f"{dtd}<list>{'<entry/>' * 20_000}</list>"))) == 20_000
    assert time.process_time() - began < 5
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()


def pieces_of(size: int, text: str) -> Iterator[str]:
    for _ in range(size // len(text)):
        yield text


@pytest.mark.parametrize(
    ("start", "again"),
    [
        ("<list>", "<a>" * 20_000),
        ("<list><entry><loc>", "<a>" * 20_000),
        ("<list><entry x='", "x" * 60_000),
        ("<list><entry><!--", "x" * 60_000),
        ("<list><?pi ", "x" * 60_000),
        ("<list><", "x" * 60_000),
    ],
    ids=["elements", "elements-in-a-field", "attribute", "comment", "instruction", "name"],
)
def test_depth_and_tokens_without_end_are_refused_at_once_and_in_little_memory(
    start: str, again: str
):
    tracemalloc.start()
    began = time.process_time()

    _, error = read_until_it_fails(start, *pieces_of(50 << 20, again))

    assert error.reason is Reason.XML_UNSAFE
    # The document has 50 MiB, for which expat 2.5 would take minutes.
    assert time.process_time() - began < 5
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_record_that_is_too_large_loses_fields_and_none_is_shortened():
    long = "http://a.example/" + "x" * (1 << 18)
    fields = "<f a='1'/>" * 5000

    (first, second) = read(
        f"<list><entry><loc>{long}</loc><id>i</id></entry><entry>{fields}<loc>b</loc></entry></list>"
    )

    assert first.text("loc", "id") == ""
    assert len(second.fields) == 1000
    assert second.text("loc") == ""


def test_what_comes_before_an_error_is_found():
    found, error = read_until_it_fails(
        "<list><entry><loc>a</loc></entry><entry><loc>b</l", "oc></entry><entry><loc>c</entry>"
    )

    assert found == ["a", "b"]
    assert error.reason is Reason.PARSE_ERROR
    assert "mismatched tag" in error.message


@pytest.mark.parametrize("text", ["", "   ", "no XML", "<list>", "<list><entry>", "\x00" * 100])
def test_what_is_no_xml_is_a_failure_of_its_own(text: str):
    assert read_until_it_fails(text)[1].reason is Reason.PARSE_ERROR


def test_a_page_instead_of_a_list_is_named():
    _, error = read_until_it_fails("<!DOCTYPE html><html><head></head></html>")

    assert error.message == "it is <html>, not a list"
