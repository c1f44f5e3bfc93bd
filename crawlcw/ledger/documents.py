"""Documents of tasks, hosts and workers: the field names, and the encoding of values.

Both ledgers use these names, so a task reads the same in mongosh and in
sqlite3. A host is

    _id          its name, the politeness key of its tasks
    ready_at     time from which it may be leased: the lease's end while leased; absent: no work
    owner        the token of its lease, or null
    epoch        the number of its leases
    released     the epoch of the last lease that its owner ended
    not_before   no request starts earlier; absent: now
    delay        the adaptive delay in seconds
    failures     of the host, in a row
    page_failures  of its pages, in a row
    given_up     reason why all its tasks were ignored; absent: they were not
    origins      {scheme: {failures, unresolved, failing_since, not_before, good_at, resolved,
                 probe_page, given_up}}, without empty fields; absent: no request yet
    robots       {origin, body, sitemaps, expires}; absent: not fetched yet
    finished     the number of its finished pages

and a worker

    _id          its name
    machine, host, pid, birth, started   as in `Worker`
    heartbeat    time of its last heartbeat
    left         time when it left the list of workers, null before
    idle       whether it has no host to crawl, although there is work
    counters        {pages, items, fetched, bytes, dropped: {reason: number},
                 examples: {reason: [link]}, items_by_callback: {name: number},
                 items_dropped: {reason: number}}
    vitals       {finished, failed, ignored, items, bytes, rate, processing, memory, lag}, as in
                 `Vitals`

A page that was finished once also has

    visit        {time, changed, interval, etag, last_modified, digest} of its last visit
    revisit      time of its next visit; absent: never
    stored       {file, offset, length} of the WARC record with its body; absent: none
    items_from   {fence, time, url} of the visit with its items; on MongoDB only
    versions     the same for each visit with kept items; on MongoDB only

    A tracked task also has

    data         its data, or a reference to it, see `blob`
    results      {stage: result}, or references to them
    trace        the last claims: {fence, stage, worker, started_at, ended_at, event}
    woken        time when it was last made due other than by an outcome (on MongoDB, to
                 distinguish such a write from a renewal)

    A value that is too large is stored outside of its task, and replaced by
    `{%blob: id, size: n}`.

The dates of a store are instants. A time without a zone is `{%naive: its text}`.

Keys from a spider or a page are escaped (`$`, `.`, NUL and `%`
as `%24`, ...), so they can neither become operators nor field paths.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

from crawlcw.errors import Reason
from crawlcw.model import values
from crawlcw.model.counters import Counters
from crawlcw.model.health import Origin
from crawlcw.model.hosts import Host, HostLease, RobotsRecord
from crawlcw.model.rates import Vitals
from crawlcw.model.task import (
    DONE,
    NO_OPTIONS,
    AttemptError,
    AttemptRecord,
    BlobRef,
    Payload,
    Record,
    RequestOptions,
    ResponseInfo,
    Status,
    StoredPage,
    Task,
)
from crawlcw.model.transitions import Change, Settlement
from crawlcw.model.visits import Visit
from crawlcw.model.workers import Worker

#: Fields that `page` reads of a task: all except those that grow with its results.
TASK_FIELDS = tuple(field.name for field in fields(Task) if field.name not in ("id", "carried"))
#: Further fields that a claim of a tracked task reads.
CARRIED_FIELDS = tuple(field.name for field in fields(Payload))
_PARTS = (Visit, ResponseInfo, AttemptError)
_FIELDS = {part: tuple(each.name for each in fields(part)) for part in _PARTS}
#: Fields that are left out if None: MongoDB would include null in the indexes of due tasks.
_OPTIONAL = ("due", "body", "errback", "parent", "quarantine_fence", "revisit")
#: Marker keys: no escaped key begins like these.
_BLOB = "%blob"
#: A naive time, as its ISO 8601 text: every date of a store is an instant.
_NAIVE = "%naive"
_CODE = re.compile("%([0-9A-F]{2})")
#: Number of former workers that are kept, the last ones.
KEPT_WORKERS = 1_000

Document = dict[str, Any]


def document(task: Task) -> Document:
    """Return a new task as its document, without defaults and empty fields."""
    found: Document = {
        "_id": task.id,
        "url": task.url,
        "host": task.host,
        "callback": task.callback,
        "depth": task.depth,
        "priority": task.priority,
        "status": int(task.status),
        "update_time": task.update_time,
        "create_time": task.create_time,
        "lock": task.lock,
        "lock_time": task.lock_time,
        "fence": task.fence,
        "settled": task.settled,
        "retry": task.retry,
        "lost": task.lost,
    }
    if task.method != "GET":
        found["method"] = task.method
    if task.headers:
        found["headers"] = [list(pair) for pair in task.headers]
    for name in _OPTIONAL:
        if (value := getattr(task, name)) is not None:
            found[name] = value
    if task.context is not None:
        found["context"] = value_document(task.context)
    if task.options is not NO_OPTIONS and (options := task.options.to_document()):
        found["options"] = options
    if task.hops:
        found["hops"] = task.hops
    if task.reason is not None:
        found["reason"] = str(task.reason)
    if task.visit is not None:
        found["visit"] = known(task.visit)
    if task.stored is not None:
        found["stored"] = task.stored.to_document()
    if task.carried is not None:
        found["data"] = value_document(task.carried.data)
        found["results"] = results_document(task.carried.results)
    return found


def task(found: Mapping[str, Any]) -> Task:
    """Return the task of a document."""
    context = found.get("context")
    reason = found.get("reason")
    options = found.get("options")
    stored = found.get("stored")
    return Task(
        id=bytes(found["_id"]),
        url=found["url"],
        host=found["host"],
        method=found.get("method") or "GET",
        headers=tuple(map(tuple, headers)) if (headers := found.get("headers")) else (),
        body=found.get("body"),
        callback=found["callback"],
        errback=found.get("errback"),
        context=value(context) if context is not None else None,
        options=RequestOptions.from_document(options) if options else NO_OPTIONS,
        depth=found["depth"],
        parent=found.get("parent"),
        hops=found.get("hops") or 0,
        priority=found["priority"],
        status=Status(found["status"]),
        due=found.get("due"),
        update_time=found["update_time"],
        create_time=found["create_time"],
        lock=found.get("lock"),
        lock_time=found.get("lock_time"),
        fence=found["fence"],
        settled=found["settled"],
        retry=found["retry"],
        lost=found["lost"],
        quarantine_fence=found.get("quarantine_fence"),
        reason=Reason(reason) if reason is not None else None,
        visit=Visit(**visit) if (visit := found.get("visit")) else None,
        revisit=found.get("revisit"),
        stored=StoredPage.from_document(stored) if stored else None,
        carried=carried(found) if found.get("data") is not None else None,
    )


def carried(found: Mapping[str, Any]) -> Payload:
    """Return the payload in the document of a tracked task."""
    results = found.get("results") or {}
    return Payload(
        data=value(found.get("data") or {}),
        results={stage: value(result) for stage, result in results.items()},
    )


def value_document(value: Any) -> Any:
    """Return a clean value, or a reference to one, in its stored form."""
    if isinstance(value, BlobRef):
        return {_BLOB: value.id, "size": value.size}
    return escaped(value)


def value(found: Any) -> Any:
    """Return the value of a stored form, the inverse of `value_document`."""
    if isinstance(found, dict) and _BLOB in found:
        return BlobRef(id=found[_BLOB], size=found["size"])
    return unescaped(found)


def blobs(found: Mapping[str, Any]) -> list[str]:
    """Return the ids of the offloaded values that a document refers to."""
    results = found.get("results")
    results = results.values() if isinstance(results, Mapping) else ()
    parts = (found.get("context"), found.get("data"), *results)
    return [part[_BLOB] for part in parts if isinstance(part, Mapping) and _BLOB in part]


def results_document(results: Mapping[str, Any]) -> Document:
    """Return the results of stages, whose names need no escaping."""
    return {stage: value_document(result) for stage, result in results.items()}


def changed(change: Change) -> Document:
    """Return the fields of a task that *change* sets, without appended or unchanged ones.

    `due`, `quarantine_fence`, `reason` and `revisit` are None if they must be absent; for a tracked
    task see `progressed`.
    """
    found: Document = {
        "status": int(change.status),
        "due": change.due,
        "update_time": change.update_time,
        "lock": change.lock,
        "lock_time": change.lock_time,
        "fence": change.fence,
        "settled": change.settled,
        "retry": change.retry,
        "lost": change.lost,
        "quarantine_fence": change.quarantine_fence,
        "reason": str(change.reason) if change.reason is not None else None,
    }
    if change.response is not None:
        found["response"] = known(change.response)
    if change.stored is not None:
        found["stored"] = change.stored.to_document()
    if change.status in DONE:
        found["revisit"] = change.revisit
        if change.visit is not None:
            found["visit"] = known(change.visit)
    return found


def source_document(settlement: Settlement) -> Document:
    """Return the stored form of the visit with the items of a settlement."""
    task, change = settlement.lease.task, settlement.change
    time = change.fetched or change.update_time
    found: Document = {"fence": change.fence, "time": time}
    if change.response is not None and change.response.final_url != task.url:
        found["url"] = change.response.final_url
    return found


def progressed(change: Change) -> Document:
    """Return the further fields that a change of a tracked task sets.

    `results` has only the added ones.
    """
    found: Document = {}
    if change.next is not None:
        context = change.next.context
        found["host"] = found["callback"] = change.next.stage
        found["context"] = value_document(context) if context is not None else None
    if change.progress is not None:
        if change.progress.data is not None:
            found["data"] = value_document(change.progress.data)
        if change.progress.results:
            found["results"] = results_document(change.progress.results)
    return found


def trace_document(trace: AttemptRecord) -> Document:
    """Return one entry of a task's `trace`."""
    return asdict(trace)


def error_document(error: AttemptError) -> Document:
    """Return one entry of a task's `errors`."""
    return {**known(error), "kind": str(error.kind)}


def known(part: Visit | ResponseInfo | AttemptError) -> Document:
    """Return a task's `visit` or `response`, or one of its `errors`, without unknown fields."""
    found: Document = {}
    for name in _FIELDS[type(part)]:
        if (value := getattr(part, name)) is not None:
            found[name] = value
    return found


def record(found: Mapping[str, Any]) -> Record:
    """Return the record of a complete document, with all its `items`."""
    response = found.get("response")
    return Record(
        task=task(found),
        errors=tuple(
            AttemptError(
                time=e["time"],
                kind=Reason(e["kind"]),
                message=e["message"],
                attempt=e["attempt"],
                traceback=e.get("traceback"),
            )
            for e in found.get("errors") or ()
        ),
        response=ResponseInfo(**response) if response else None,
        items=tuple(unescaped(item) for item in found.get("items") or ()),
        trace=tuple(AttemptRecord(**each) for each in found.get("trace") or ()),
    )


def host_document(host: Host) -> Document:
    """Return a host as its document, without fields that are None, except the owner."""
    learned = {name: value for name, value in host_learned(host).items() if value is not None}
    found: Document = {"_id": host.name, "owner": host.owner, "epoch": host.epoch, **learned}
    if host.ready_at is not None:
        found["ready_at"] = host.ready_at
    return found


def host_learned(host: Host, *, since: Host | None = None) -> Document:
    """Return the fields that an owner writes; None: to be absent.

    Without the robots record if *since* has the same one: it is by far the largest part
    of a host, and changes once a day.
    """
    found: Document = {
        "not_before": host.not_before,
        "delay": host.delay,
        "failures": host.failures,
        "page_failures": host.page_failures,
        "given_up": str(host.given_up) if host.given_up is not None else None,
        "finished": host.finished,
        "origins": {name: _origin_document(each) for name, each in host.origins.items()} or None,
    }
    if since is None or host.robots != since.robots:
        record = host.robots
        found["robots"] = (
            None
            if record is None
            # Text from a server: one lone surrogate would fail the whole batch.
            else {
                "origin": record.origin,
                "body": values.text(record.body),
                "sitemaps": [values.text(url) for url in record.sitemaps],
                "expires": record.expires,
            }
        )
    return found


def host(found: Mapping[str, Any]) -> Host:
    """Return the host of a document."""
    robots = found.get("robots")
    given_up = found.get("given_up")
    return Host(
        name=found["_id"],
        ready_at=found.get("ready_at"),
        owner=found["owner"],
        epoch=found["epoch"],
        not_before=found.get("not_before"),
        delay=found["delay"],
        failures=found["failures"],
        page_failures=found["page_failures"],
        given_up=Reason(given_up) if given_up is not None else None,
        robots=robots and RobotsRecord(**{**robots, "sitemaps": tuple(robots["sitemaps"])}),
        finished=found["finished"],
        origins={name: _origin(each) for name, each in (found.get("origins") or {}).items()},
    )


def _origin_document(origin: Origin) -> Document:
    found: Document = {
        "failures": origin.failures,
        "unresolved": origin.unresolved,
        "failing_since": _moment(origin.failing_since),
        "not_before": _moment(origin.until),
        "good_at": _moment(origin.good_at),
        "resolved": origin.resolved,
        "probe_page": None if origin.probe_page is None else values.text(origin.probe_page),
        "given_up": None if origin.given_up is None else str(origin.given_up),
    }
    return {name: value for name, value in found.items() if value}


def _origin(found: Mapping[str, Any]) -> Origin:
    given_up = found.get("given_up")
    return Origin(
        failures=found.get("failures", 0),
        unresolved=found.get("unresolved", 0),
        failing_since=_seconds(found.get("failing_since")),
        until=_seconds(found.get("not_before")),
        good_at=_seconds(found.get("good_at")),
        resolved=found.get("resolved", False),
        probe_page=found.get("probe_page"),
        given_up=Reason(given_up) if given_up is not None else None,
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def urls_of(scheme: str | None) -> tuple[str, str]:
    """Return the bounds of the URLs with a scheme, the second one exclusive; None: any."""
    # '0' follows '/', and 'i' follows all texts that begin with 'http'.
    return ("http", "i") if scheme is None else (f"{scheme}://", f"{scheme}:/0")


def host_lease(found: Mapping[str, Any]) -> HostLease:
    """Return the lease of a leased host."""
    held = host(found)
    assert held.owner is not None
    assert held.ready_at is not None
    return HostLease(
        host=replace(held, ready_at=None),
        token=held.owner,
        epoch=held.epoch,
        expires=held.ready_at,
        clean=held.epoch == 1 or found.get("released") == held.epoch - 1,
    )


def worker_document(worker: Worker) -> Document:
    """Return a new worker as its document."""
    return {
        "_id": worker.name,
        "machine": worker.machine,
        # A machine's name may be any bytes.
        "host": values.text(worker.host),
        "pid": worker.pid,
        "birth": worker.birth,
        "started": worker.started,
        "heartbeat": worker.heartbeat,
        "left": None,
        "idle": worker.idle,
        "counters": counters_document(worker.counters),
    }


def worker(found: Mapping[str, Any]) -> Worker:
    """Return the worker of a document."""
    return Worker(
        name=found["_id"],
        machine=found["machine"],
        host=found["host"],
        pid=found["pid"],
        birth=found["birth"],
        started=found["started"],
        heartbeat=found["heartbeat"],
        idle=bool(found["idle"]),
        counters=counters(found["counters"]),
        vitals=Vitals(**shown) if (shown := found.get("vitals")) else None,
    )


def counters_document(counters: Counters) -> Document:
    """Return a worker's counters, with escaped reasons."""
    return {
        "pages": counters.pages,
        "items": counters.items,
        "fetched": counters.fetched,
        "bytes": counters.bytes,
        "dropped": _numbers(counters.links_dropped),
        "stalls": counters.stalls,
        "longest_stall": counters.longest_stall,
        "unchanged": counters.unchanged,
        "examples": escaped(
            {
                values.text(reason): [values.text(link) for link in links]
                for reason, links in counters.link_examples.items()
            }
        ),
        "items_by_callback": _numbers(counters.items_by_callback),
        "items_dropped": _numbers(counters.items_dropped),
    }


def _numbers(numbers: Mapping[str, int]) -> Document:
    stored: Counter[str] = Counter()
    for name, number in numbers.items():
        stored[values.text(name)] += number
    return dict(escaped(dict(stored)))


def counters(found: Mapping[str, Any]) -> Counters:
    """Return the counters of a stored form, the inverse of `counters_document`."""
    named = {
        "dropped": "links_dropped",
        "examples": "link_examples",
        "items_by_callback": "items_by_callback",
        "items_dropped": "items_dropped",
    }
    plain = {name: value for name, value in found.items() if name not in named}
    by_name = {name: unescaped(found[stored]) for stored, name in named.items()}
    return Counters(**plain, **by_name)


def escaped(value: Any) -> Any:
    """Return a clean value with special keys and naive times encoded for a store."""
    if isinstance(value, dict):
        found: Document = {}
        for key, each in value.items():
            plain = type(each) is str or type(each) is int  # the most frequent types
            name = key if key.isidentifier() else _escaped_key(key)
            found[name] = each if plain else escaped(each)
        return found
    if isinstance(value, list):
        return [escaped(each) for each in value]
    if isinstance(value, datetime) and value.tzinfo is None:
        return {_NAIVE: value.isoformat()}
    return value


def unescaped(value: Any) -> Any:
    """Return the value of an encoded one, the inverse of `escaped`."""
    if isinstance(value, dict):
        if _NAIVE in value:
            return datetime.fromisoformat(value[_NAIVE])
        return {_unescaped_key(k): unescaped(v) for k, v in value.items()}
    if isinstance(value, list):
        return [unescaped(each) for each in value]
    return value


def _escaped_key(key: str) -> str:
    if not key:
        return "%"
    key = key.replace("%", "%25").replace(".", "%2E").replace("\0", "%00")
    return "%24" + key[1:] if key[0] == "$" else key


def _unescaped_key(key: str) -> str:
    if "%" not in key:
        return key
    if key == "%":
        return ""
    return _CODE.sub(lambda code: chr(int(code[1], 16)), key)
