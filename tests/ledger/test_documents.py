"""Documents of tasks, workers and hosts."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.documents import escaped, unescaped
from crawlcw.ledger.protocol import Counters, Worker
from crawlcw.model.hosts import Host
from crawlcw.model.task import (
    AttemptError,
    BlobRef,
    Payload,
    Record,
    RequestOptions,
    ResponseInfo,
    Status,
    StoredPage,
    Task,
)
from crawlcw.model.visits import Visit
from tests.support.ledgers import START, make_task

pytestmark = pytest.mark.quick

FULL = make_task(
    method="POST",
    headers=(("A", "1"), ("A", "2")),
    body=b"\0",
    errback="failed",
    context={"$a": {"b.c": 1}},
    options=RequestOptions(
        max_retry=7, timeout=1.5, retry_statuses=(403,), accept_statuses=(), max_depth=0
    ),
    depth=2,
    parent=b"p" * 16,
    hops=3,
    priority=3,
    status=Status.FAILED,
    lock="w:1",
    lock_time=START,
    fence=4,
    settled=3,
    retry=2,
    lost=1,
    quarantine_fence=4,
    visit=Visit(time=START, changed=START, etag='"1"', interval=60.0),
    revisit=START,
    stored=StoredPage(file="books-1.warc.gz", offset=5, length=7),
)


@pytest.mark.parametrize("task", [make_task(), FULL])
def test_a_task_comes_back_from_its_document(task: Task):
    assert documents.task(documents.document(task)) == task


def test_a_tracked_task_comes_back_with_what_it_carries():
    blob = BlobRef(id="a" * 32, size=1 << 20)
    carried = Payload(data={"%blob": {"a.b": 1}}, results={"scan": blob, "other": [{"$x": 2}]})
    task = replace(FULL, context=blob, carried=carried)

    document = documents.document(task)

    assert set(document) - set(documents.document(FULL)) == set(documents.CARRIED_FIELDS)
    assert documents.task(document) == task


def test_what_is_default_is_left_out():
    document = documents.document(make_task())

    assert not {"method", "headers", "body", "errback", "context", "options", "parent"} & set(
        document
    )


def test_no_crawled_key_is_an_operator_or_a_path():
    document = documents.document(FULL)

    assert document["context"] == {"%24a": {"b%2Ec": 1}}


def test_a_worker_comes_back_from_its_document_with_its_first_heartbeat():
    counters = Counters(
        pages=1,
        items=2,
        fetched=3,
        bytes=4,
        links_dropped={"$where": 5, "a.b": 6},
        link_examples={"$where": ["$a"], "a.b": ["x", "y"]},
    )
    worker = Worker(
        name="w",
        machine="m",
        pid=7,
        birth="8",
        started=START,
        heartbeat=START,
        host="h",
        counters=counters,
    )

    document = documents.worker_document(worker)

    assert documents.worker(document) == replace(worker, heartbeat=START)
    assert document["counters"]["links_dropped"] == {"%24where": 5, "a%2Eb": 6}
    assert document["counters"]["link_examples"] == {"%24where": ["$a"], "a%2Eb": ["x", "y"]}


def test_counters_are_added_field_by_field_and_reason_by_reason():
    one = Counters(pages=1, items=2, fetched=3, bytes=4, links_dropped={"depth": 5, "scope": 6})
    two = Counters(
        pages=10, items=20, fetched=30, bytes=40, links_dropped={"scope": 60, "trap": 70}
    )

    assert one + two == Counters(
        pages=11,
        items=22,
        fetched=33,
        bytes=44,
        links_dropped={"depth": 5, "scope": 66, "trap": 70},
    )
    assert sum([one, two], Counters()) == one + two


def test_a_record_comes_back_from_its_document():
    error = AttemptError(time=START, kind=Reason.PARSE_ERROR, message="m", attempt=1, traceback="t")
    bare = replace(error, traceback=None, time=START + timedelta(seconds=1))
    response = ResponseInfo(status=200, final_url="http://example.com/", etag='"e"', bytes=3)
    document = documents.document(FULL) | {
        "reason": "parse-error",
        "errors": [documents.error_document(error), documents.error_document(bare)],
        "response": documents.part_document(response),
        "items": [escaped({"$a": 1})],
    }

    assert documents.record(document) == Record(
        task=replace(FULL, reason=Reason.PARSE_ERROR),
        errors=(error, bare),
        response=response,
        items=({"$a": 1},),
    )
    assert "content_type" not in document["response"]
    assert "traceback" not in document["errors"][1]


keys = st.text(st.sampled_from("$.%\0a024E5é"), max_size=8) | st.text(max_size=4)
clean_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=15,
)


@given(clean_values)
def test_unescaped_is_the_inverse_of_escaped(value):
    assert unescaped(escaped(value)) == value


@given(st.dictionaries(keys, st.none()))
def test_an_escaped_key_means_nothing_to_a_store(value):
    for key in escaped(value):
        assert key
        assert not key.startswith("$")
        assert not set(key) & set(".\0")


def test_a_host_comes_back_from_its_document_with_the_state_of_its_breakers():
    written = {
        "failures": 3,
        "unresolved": 1,
        "failing_since": START.timestamp(),
        "rest_end": START.timestamp() + 40,
        "good_at": START.timestamp() - 5,
        "resolved": True,
        "probes": [["http://a.example/good", 2]],
    }
    lost = {"failures": 2, "given_up": "dns-nxdomain"}
    document = documents.host_document(Host(name="a.example"))
    document["origins"] = {"http": written, "https": lost}

    host = documents.host(document)

    http, https = host.origins["http"], host.origins["https"]
    assert (http.failures, http.unresolved) == (3, 1)
    assert http.probes == {"http://a.example/good": 2}
    assert http.rest_end == (START + timedelta(seconds=40)).timestamp()
    assert https.given_up is Reason.DNS_NXDOMAIN
    assert documents.host_document(host) == document
