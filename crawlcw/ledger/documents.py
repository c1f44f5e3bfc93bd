"""Documents of tasks, hosts and workers: the field names, and the encoding of values.

All ledgers use the same field names, so a task looks the same in mongosh and in sqlite3. A host has
these fields:

    _id          name of the host, the politeness key of its tasks
    ready_at     when it may be leased; of a leased host, the lease's end; absent: no work
    owner        the token of the host's lease, or null
    epoch        how often the host was leased
    released     the epoch of the last lease that its owner ended
    not_before   time before which no request starts; absent: now
    delay        the adaptive delay in seconds
    failures     number of failures of the host in a row
    page_failures  number of failures of its pages in a row
    given_up     reason why all tasks of the host were ignored; absent: they were not
    origins      {scheme: {failures, unresolved, failing_since, rest_end, good_at, resolved,
                 probes: [[URL, count]], given_up}}, as in `Origin`, without empty fields;
                 absent: none yet
    robots       {origin, body, sitemaps, expires}; absent: not fetched yet
    finished     the number of finished pages of the host

A worker has these fields:

    _id          name of the worker
    machine, host, pid, birth, started   as in `Worker`
    heartbeat    time of the worker's last heartbeat
    left_at      time when it left the list of workers, null before
    idle         whether the worker has no host to crawl, although there is work
    counters     some of `Counters`, by name
    vitals       as in `Vitals`
    loan         as in `Loan`; absent: none yet
    report       as in `LoanReport`; absent: none yet

A page that was finished at least once also has these fields:

    visit        {time, changed, interval, etag, last_modified, digest} of the last visit
    revisit      time of the next visit; absent: never
    stored       {file, offset, length} of the WARC record with the body; absent: none
    items_from   {fence, time, url} of the visit that found the items; on MongoDB only
    versions     `items_from` of each visit whose items are kept; on MongoDB only

A tracked task also has these fields:

    data         the task's data, or a reference to a blob
    results      {stage: result}, or {stage: reference to a blob}
    trace        the last claims: {fence, stage, worker, started_at, ended_at, event}
    woken        time of the last write that made the task due without an outcome (on MongoDB,
                 to distinguish this write from a renewal)

A value that is too large is stored as a blob. The task's document then has `{%blob: id, size: n}`
in place of the value. The stores have no common type for the following values: BSON has no date
without a time, and its decimals have at most 34 digits.

    {%naive: ISO text}     a time without a zone
    {%date: ISO text}      a date without a time
    {%decimal: text}       a decimal number

An item has the name of its class, if it has one, in `%class`. The file of a request in an item is
stored as `{%file: id of the request's task in hexadecimal, or null, url: ..., reason: ...}`.

In keys from a spider or a page, `$`, `.`, NUL and `%` are escaped (`$` as `%24`), because MongoDB
would read such a key as an operator or as a field path.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter, itemgetter
from typing import Any

from crawlcw.errors import Reason
from crawlcw.model import values
from crawlcw.model.counters import Counters
from crawlcw.model.health import Origin
from crawlcw.model.hosts import Host, HostLease, RobotsRecord
from crawlcw.model.loans import Fault, Loan, LoanReport
from crawlcw.model.rates import Vitals, Worker
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
    redirect_target,
)
from crawlcw.model.transitions import Change, Settlement
from crawlcw.model.values import ItemFields, ItemFile
from crawlcw.model.visits import Visit

#: Names of the task fields that `Tasks.page` reads, without the fields for results.
TASK_FIELDS = tuple(field.name for field in fields(Task) if field.name not in ("id", "carried"))
#: Names of further task fields that a claim of a tracked task reads.
CARRIED_FIELDS = tuple(field.name for field in fields(Payload))
#: Every task's document has these fields, with the same values as the `Task`. A document leaves out
#: every other field that is None, because MongoDB would add a null to the indexes of due tasks.
_PLAIN_FIELDS = (
    *("url", "host", "callback", "depth", "priority", "update_time", "create_time", "lock"),
    *("lock_time", "fence", "settled", "retry", "lost"),
)
_plain_values, _stored_plain = attrgetter(*_PLAIN_FIELDS), itemgetter(*_PLAIN_FIELDS)
_OPTIONAL_FIELDS = ("due", "body", "errback", "parent", "quarantine_fence", "revisit")
#: Each change of a task sets these fields to the values of the same fields of the `Change`.
_CHANGED_FIELDS = (
    *("due", "update_time", "lock", "lock_time", "fence", "settled", "retry", "lost"),
    "quarantine_fence",
)
_changed_values = attrgetter(*_CHANGED_FIELDS)
#: Names of the fields that are stored unchanged, for a host, an origin, a worker and the counters.
_OF_HOST = ("delay", "failures", "page_failures", "finished")
_OF_ORIGIN = ("failures", "unresolved", "failing_since", "rest_end", "good_at", "resolved")
_OF_WORKER = ("machine", "pid", "birth", "started", "heartbeat", "idle")
_NUMBER_FIELDS = ("pages", "items", "fetched", "bytes", "stalls", "longest_stall", "unchanged")
#: Names of the counters that map texts to numbers.
_BY_NAME = ("links_dropped", "link_examples", "items_by_callback", "items_dropped")
_STORED_CLASSES = (Visit, ResponseInfo, AttemptError)
_FIELDS = {part: tuple(part_field.name for part_field in fields(part)) for part in _STORED_CLASSES}
#: Key of a reference to a blob. In an escaped key of a page, no lower-case letter follows a `%`.
_BLOB_KEY = "%blob"
_NAIVE_TIME_KEY, _DATE_KEY, _DECIMAL_KEY = "%naive", "%date", "%decimal"
#: Decoders of the values that are stored as a text, by the only key of their documents.
_DECODERS: dict[str, Callable[[Any], Any]] = {
    _NAIVE_TIME_KEY: datetime.fromisoformat,
    _DATE_KEY: date.fromisoformat,
    _DECIMAL_KEY: Decimal,
}
#: Key of the name of an item's class, among the item's fields.
_CLASS_KEY = "%class"
#: Key of the id of the task that saves a file of an item.
_FILE_KEY = "%file"
_CHARACTER_CODE = re.compile("%([0-9A-F]{2})")
#: Number of ended workers that the ledger keeps at most; the ledger forgets the oldest.
KEPT_WORKERS = 1_000

Document = dict[str, Any]


def document(task: Task) -> Document:
    """Return the document of a new task, without default values and empty fields."""
    task_fields: Document = dict(zip(_PLAIN_FIELDS, _plain_values(task), strict=True))
    task_fields["_id"] = task.id
    task_fields["status"] = int(task.status)
    if task.method != "GET":
        task_fields["method"] = task.method
    if task.headers:
        task_fields["headers"] = [list(pair) for pair in task.headers]
    for name in _OPTIONAL_FIELDS:
        if (value := getattr(task, name)) is not None:
            task_fields[name] = value
    if task.context is not None:
        task_fields["context"] = value_document(task.context)
    if task.options is not NO_OPTIONS and (options := task.options.to_document()):
        task_fields["options"] = options
    if task.hops:
        task_fields["hops"] = task.hops
    if task.reason is not None:
        task_fields["reason"] = str(task.reason)
    if task.visit is not None:
        task_fields["visit"] = part_document(task.visit)
    if task.stored is not None:
        task_fields["stored"] = asdict(task.stored)
    if task.carried is not None:
        task_fields["data"] = value_document(task.carried.data)
        task_fields["results"] = results_document(task.carried.results)
    return task_fields


def task(document: Mapping[str, Any]) -> Task:
    """Return the task that a document describes."""
    context = document.get("context")
    reason = document.get("reason")
    options = document.get("options")
    stored = document.get("stored")
    plain: Document = dict(zip(_PLAIN_FIELDS, _stored_plain(document), strict=True))
    for name in _OPTIONAL_FIELDS:
        plain[name] = document.get(name)
    return Task(
        **plain,
        id=bytes(document["_id"]),
        method=document.get("method") or "GET",
        headers=tuple(map(tuple, headers)) if (headers := document.get("headers")) else (),
        context=value(context) if context is not None else None,
        options=RequestOptions.from_document(options) if options else NO_OPTIONS,
        hops=document.get("hops") or 0,
        status=Status(document["status"]),
        reason=Reason(reason) if reason is not None else None,
        visit=Visit(**visit) if (visit := document.get("visit")) else None,
        stored=StoredPage(**stored) if stored else None,
        carried=carried(document) if document.get("data") is not None else None,
    )


def carried(document: Mapping[str, Any]) -> Payload:
    """Return the payload (data and results) in the document of a tracked task."""
    results = document.get("results") or {}
    return Payload(
        data=value(document.get("data") or {}),
        results={stage: value(result) for stage, result in results.items()},
    )


def value_document(value: Any) -> Any:
    """Return a clean value (see `model.values`), or a blob's reference, as stores keep it."""
    if isinstance(value, BlobRef):
        return {_BLOB_KEY: value.id, "size": value.size}
    return escaped(value)


def value(stored: Any) -> Any:
    """Decode a stored value that `value_document` has encoded; a blob gives its `BlobRef`."""
    if isinstance(stored, dict) and _BLOB_KEY in stored:
        return BlobRef(id=stored[_BLOB_KEY], size=stored["size"])
    return unescaped(stored)


def blobs(document: Mapping[str, Any]) -> list[str]:
    """Return the ids of the blobs that the document of a task refers to."""
    results = document.get("results")
    results = results.values() if isinstance(results, Mapping) else ()
    parts = (document.get("context"), document.get("data"), *results)
    return [part[_BLOB_KEY] for part in parts if isinstance(part, Mapping) and _BLOB_KEY in part]


def results_document(results: Mapping[str, Any]) -> Document:
    """Return the results of a task by stage; names of stages need no escaping."""
    return {stage: value_document(result) for stage, result in results.items()}


def changed(change: Change) -> Document:
    """Return the task fields that *change* sets, but not the lists that *change* only extends.

    `due`, `quarantine_fence`, `reason` and `revisit` are None if they must be absent; for a tracked
    task see `progressed`.
    """
    new_fields: Document = dict(zip(_CHANGED_FIELDS, _changed_values(change), strict=True))
    new_fields["status"] = int(change.status)
    new_fields["reason"] = str(change.reason) if change.reason is not None else None
    if change.response is not None:
        new_fields["response"] = part_document(change.response)
    if change.stored is not None:
        new_fields["stored"] = asdict(change.stored)
    if change.status in DONE:
        new_fields["revisit"] = change.revisit
        if change.visit is not None:
            new_fields["visit"] = part_document(change.visit)
    return new_fields


def source_document(settlement: Settlement) -> Document:
    """Return the field `items_from`, which describes the visit that found the items."""
    task, change = settlement.lease.task, settlement.change
    visit_time = change.fetched or change.update_time
    source: Document = {"fence": change.fence, "time": visit_time}
    if change.response is not None and change.response.final_url != task.url:
        source["url"] = change.response.final_url
    return source


def progressed(change: Change) -> Document:
    """Return the fields that a change sets only in a tracked task.

    `results` has only the added results.
    """
    new_fields: Document = {}
    if change.next is not None:
        context = change.next.context
        new_fields["host"] = new_fields["callback"] = change.next.stage
        new_fields["context"] = value_document(context) if context is not None else None
    if change.progress is not None:
        if change.progress.data is not None:
            new_fields["data"] = value_document(change.progress.data)
        if change.progress.results:
            new_fields["results"] = results_document(change.progress.results)
    return new_fields


def trace_document(trace: AttemptRecord) -> Document:
    """Return the document of one entry of a task's `trace`."""
    return asdict(trace)


def error_document(error: AttemptError) -> Document:
    """Return the document of one entry of a task's `errors`."""
    return {**part_document(error), "kind": str(error.kind)}


def part_document(part: Visit | ResponseInfo | AttemptError) -> Document:
    """Return the document of a task's visit, response or error, without fields that are None."""
    present_fields: Document = {}
    for name in _FIELDS[type(part)]:
        if (value := getattr(part, name)) is not None:
            present_fields[name] = value
    return present_fields


def record(document: Mapping[str, Any]) -> Record:
    """Return a task's `Record` from its complete document, with all `items` of the document."""
    response = document.get("response")
    return Record(
        task=task(document),
        errors=tuple(
            AttemptError(**{**entry, "kind": Reason(entry["kind"])})
            for entry in document.get("errors") or ()
        ),
        response=ResponseInfo(**response) if response else None,
        items=tuple(unescaped(item) for item in document.get("items") or ()),
        trace=tuple(AttemptRecord(**entry) for entry in document.get("trace") or ()),
    )


def leads_to(document: Mapping[str, Any]) -> bytes | None:
    """Return the id of the task to which a task redirects; see `Record.leads_to`."""
    response = document.get("response")
    if not response or (reason := document.get("reason")) is None:
        return None
    return redirect_target(Status(document["status"]), Reason(reason), response["final_url"])


def file_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an `ItemFile` that the document of the file's task has."""
    response = document.get("response") or {}
    path = response.get("file")
    return {
        "path": path,
        "sha256": response.get("sha256"),
        "size": None if path is None else response["bytes"],
        "status": Status(document["status"]).name.lower(),
        "reason": document.get("reason"),
    }


def host_document(host: Host) -> Document:
    """Return the document of a host, without fields that are None, except `owner`."""
    present_fields = {
        name: value for name, value in owner_fields(host).items() if value is not None
    }
    host_fields: Document = {
        "_id": host.name,
        "owner": host.owner,
        "epoch": host.epoch,
        **present_fields,
    }
    if host.ready_at is not None:
        host_fields["ready_at"] = host.ready_at
    return host_fields


def owner_fields(host: Host, *, previous: Host | None = None) -> Document:
    """Return the fields that a host's owner writes; the write removes each field that is None.

    The result leaves out the robots record if *previous* has the same record. The record is by far
    the largest part of a host, and changes only once a day.
    """
    host_fields = _fields(host, (*_OF_HOST, "not_before"))
    host_fields["given_up"] = str(host.given_up) if host.given_up is not None else None
    origins = {scheme: _origin_document(origin) for scheme, origin in host.origins.items()}
    host_fields["origins"] = origins or None
    if previous is None or host.robots != previous.robots:
        record = host.robots
        host_fields["robots"] = (
            None
            if record is None
            # Remove lone surrogates from the robots.txt, because a store refuses a batch with a
            # surrogate.
            else {
                "origin": record.origin,
                "body": values.text(record.body),
                "sitemaps": [values.text(url) for url in record.sitemaps],
                "expires": record.expires,
            }
        )
    return host_fields


def host(document: Mapping[str, Any]) -> Host:
    """Return the host that a document describes."""
    robots = document.get("robots")
    given_up = document.get("given_up")
    return Host(
        **{name: document[name] for name in (*_OF_HOST, "owner", "epoch")},
        name=document["_id"],
        ready_at=document.get("ready_at"),
        not_before=document.get("not_before"),
        given_up=Reason(given_up) if given_up is not None else None,
        robots=robots and RobotsRecord(**{**robots, "sitemaps": tuple(robots["sitemaps"])}),
        origins={name: _origin(origin) for name, origin in (document.get("origins") or {}).items()},
    )


def _origin_document(origin: Origin) -> Document:
    origin_fields = _fields(origin, _OF_ORIGIN)
    origin_fields["probes"] = [
        [values.text(page), probe_count] for page, probe_count in origin.probes.items()
    ]
    origin_fields["given_up"] = origin.given_up and str(origin.given_up)
    return {name: value for name, value in origin_fields.items() if value}


def _origin(origin_fields: Mapping[str, Any]) -> Origin:
    given_up = origin_fields.get("given_up")
    return Origin(
        **{
            **origin_fields,
            "probes": dict(origin_fields.get("probes", ())),
            "given_up": Reason(given_up) if given_up is not None else None,
        }
    )


def urls_of(scheme: str | None) -> tuple[str, str]:
    """Return a lower bound and an exclusive upper bound of URLs with *scheme*, or of all URLs."""
    # The upper bounds work because '0' is the code point after '/', and 'i' is after 'h'.
    return ("http", "i") if scheme is None else (f"{scheme}://", f"{scheme}:/0")


def host_lease(document: Mapping[str, Any]) -> HostLease:
    """Return the lease in the document of a leased host."""
    leased_host = host(document)
    assert leased_host.owner is not None
    assert leased_host.ready_at is not None
    return HostLease(
        host=replace(leased_host, ready_at=None),
        token=leased_host.owner,
        epoch=leased_host.epoch,
        expires=leased_host.ready_at,
        clean=leased_host.epoch == 1 or document.get("released") == leased_host.epoch - 1,
    )


def worker_document(worker: Worker) -> Document:
    """Return the document of a new worker."""
    return {
        **_fields(worker, _OF_WORKER),
        "_id": worker.name,
        # Clean the machine's name, because it may contain any bytes.
        "host": values.text(worker.host),
        "left_at": None,
        "counters": counters_document(worker.counters),
    }


def worker(document: Mapping[str, Any]) -> Worker:
    """Return the worker that a document describes."""
    plain_fields = {name: document[name] for name in (*_OF_WORKER, "host")}
    return Worker(
        **{**plain_fields, "idle": bool(document["idle"])},
        name=document["_id"],
        counters=counters(document["counters"]),
        vitals=Vitals(**vitals) if (vitals := document.get("vitals")) else None,
        loan=loan(document),
        report=_report(document.get("report")),
    )


def loan(document: Mapping[str, Any]) -> Loan | None:
    """Return the loan in the document of a worker, if the worker has one."""
    return Loan(**loan_fields) if (loan_fields := document.get("loan")) else None


def report_document(report: LoanReport) -> Document:
    """Return the document of a borrower's report of its loan."""
    # Clean the URL of the report, because it is crawled text.
    faults = [{**asdict(fault), "url": values.text(fault.url)} for fault in report.faults]
    return {**asdict(report), "faults": faults}


def _report(report: Mapping[str, Any] | None) -> LoanReport | None:
    if not report:
        return None
    return LoanReport(**{**report, "faults": tuple(Fault(**fault) for fault in report["faults"])})


def counters_document(counters: Counters) -> Document:
    """Return the document of a worker's counters, with escaped names."""
    counter_fields = _fields(counters, _NUMBER_FIELDS)
    for field in _BY_NAME:
        stored: dict[str, Any] = {}
        for name, number in values.clean(list(getattr(counters, field).items())):
            stored[name] = stored[name] + number if name in stored else number
        counter_fields[field] = escaped(stored)
    return counter_fields


def counters(stored: Mapping[str, Any]) -> Counters:
    """Return the counters that `counters_document` has put into a document."""
    return Counters(**{**stored, **{name: unescaped(stored[name]) for name in _BY_NAME}})


def _fields(instance: object, names: Iterable[str]) -> Document:
    return {name: getattr(instance, name) for name in names}


def escaped(value: Any) -> Any:
    """Encode a clean value for a store: special keys, the class, and values without a stored type.

    These are the values that `_DECODERS` decodes.
    """
    if isinstance(value, dict):
        escaped_fields: Document = {}
        for key, element in value.items():
            plain = type(element) is str or type(element) is int  # the most frequent types
            name = key if key.isidentifier() else _escaped_key(key)
            escaped_fields[name] = element if plain else escaped(element)
        if type(value) is dict:
            return escaped_fields
        if isinstance(value, ItemFile):
            task_id = None if value.task_id is None else value.task_id.hex()
            return {_FILE_KEY: task_id, "url": value["url"], "reason": value["reason"]}
        if isinstance(value, ItemFields):
            escaped_fields[_CLASS_KEY] = value.item_class
        return escaped_fields
    if isinstance(value, list):
        return [escaped(element) for element in value]
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else {_NAIVE_TIME_KEY: value.isoformat()}
    if isinstance(value, date):
        return {_DATE_KEY: value.isoformat()}
    if isinstance(value, Decimal):
        return {_DECIMAL_KEY: str(value)}
    return value


def unescaped(value: Any) -> Any:
    """Return the value that `escaped` has encoded."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, text),) = value.items()
            if (decode := _DECODERS.get(key)) is not None:
                return decode(text)
        if _FILE_KEY in value:
            task_id = value[_FILE_KEY]
            return ItemFile(
                value["url"], task_id=task_id and bytes.fromhex(task_id), reason=value["reason"]
            )
        unescaped_fields = {
            _unescaped_key(k): unescaped(v) for k, v in value.items() if k != _CLASS_KEY
        }
        if _CLASS_KEY in value:
            return ItemFields(unescaped_fields, item_class=value[_CLASS_KEY])
        return unescaped_fields
    if isinstance(value, list):
        return [unescaped(element) for element in value]
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
    return _CHARACTER_CODE.sub(lambda code: chr(int(code[1], 16)), key)
