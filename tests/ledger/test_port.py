"""Random operations on every store give the same results as the model on dictionaries."""

import asyncio
import pathlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crawlcw.errors import LedgerError
from crawlcw.ledger import documents, port
from crawlcw.ledger.choosing import beginning_with, behind
from crawlcw.ledger.documents import Document
from crawlcw.ledger.values import Cursor
from crawlcw.model.hosts import Host
from crawlcw.model.task import Status
from tests.support.dict_store import DictStore
from tests.support.ledgers import BACKENDS, START, make_task, on_backend

MINUTE = timedelta(minutes=1)

some_number = st.integers(-3, 3)
some_time = some_number.map(lambda n: START + n * timedelta(seconds=29, milliseconds=1))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a primitive of a table."""

    table: str
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]

    async def on(self, unit: port.Unit) -> Any:
        table: port.Table = getattr(unit, self.table)
        found = await getattr(table, self.name)(*self.args, **self.options)
        if self.name == "read":
            options = self.options.get("fields")
            return {key: without_nothing(each, options) for key, each in found.items()}
        if self.name == "scan":
            return [without_nothing(each, self.options.get("fields")) for each in found]
        return found


def without_nothing(document: Document, fields: Collection[str] | None = None) -> Document:
    """Return a document without fields that are None, empty, or not in the projection.

    A store may leave them out.
    """
    return {
        name: value
        for name, value in document.items()
        if value not in (None, {}) and (fields is None or name in fields)
    }


def called(table: str, name: str, *args: Any, **options: Any) -> st.SearchStrategy[Call]:
    return st.builds(
        Call, st.just(table), st.just(name), st.tuples(*args), st.fixed_dictionaries(options)
    )


def written(*parts: st.SearchStrategy[Any]) -> st.SearchStrategy[port.Write]:
    """Return writes without a new document."""
    return st.tuples(*parts).map(lambda given: port.Write(*given))


def changes(table: str, *writes: st.SearchStrategy[port.Write]) -> st.SearchStrategy[Call]:
    """Return writes of different keys: for one key, the order would matter."""
    some = st.lists(st.one_of(writes), max_size=3, unique_by=lambda write: write.key)
    return called(table, "change", some)


# The points of workers.

some_minute = st.integers(-2, 2).map(lambda n: START + n * MINUTE)
some_place = st.tuples(st.sampled_from([1, 7]), some_minute, st.sampled_from(["a", "b c"]))
some_stretch = (
    st.tuples(some_place, some_place).map(lambda ends: port.Within(ends[0][:2], ends[1][:2]))
    | st.tuples(some_place, some_place).map(lambda ends: port.Within(ends[0], ends[1][:2]))
    | some_place.map(lambda end: port.Within(end[:1], end[:2]))
)
some_point = st.builds(
    lambda place, time, count: {
        **dict(zip(port.RATE_KEY, place, strict=True)),
        "started": START,
        "time": time,
        "vitals": {"finished": count, "rate": count / 4},
    },
    some_place,
    some_time,
    some_number,
)


def of_point(write: Callable[[port.Key, Document], port.Write]) -> st.SearchStrategy[port.Write]:
    return some_point.map(lambda point: write(tuple(point[name] for name in port.RATE_KEY), point))


rates = (
    changes(
        "rates",
        of_point(
            lambda key, new: port.Write(
                key, {"time": port.AtMost(new["time"])}, port.Edit(set=new), new=new
            )
        ),
        of_point(
            lambda key, new: port.Write(
                key, {"started": START}, port.Edit(set={"time": new["time"]})
            )
        ),
        of_point(
            lambda key, new: port.Write(key, {"time": new["time"]}, port.Edit(set={"vitals": {}}))
        ),
    ),
    called(
        "rates",
        "scan",
        some_stretch.map(lambda stretch: {"_id": stretch}),
        limit=st.integers(1, 3),
    ),
    called("rates", "delete", some_stretch.map(lambda stretch: {"_id": stretch})),
)

# Sessions: SQLite keeps some fields in columns of their own and the others in one of JSON.

some_member = st.sampled_from(["c0", "%24a%2Eb", "a b-1", "ü"])
some_value = st.recursive(
    st.none()
    | st.booleans()
    | some_number
    | some_time
    | st.sampled_from(["", "ü'\"\\\0\u2028$", b"\0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(some_member, inner, max_size=2),
    max_leaves=4,
)
some_members = st.dictionaries(some_member, some_value, max_size=3)
some_name = st.sampled_from(["ada", "bob"])
some_session = st.builds(
    lambda name, values: {"_id": name, "state": "ready", "score": 0, "cookies": {}, **values},
    some_name,
    st.fixed_dictionaries(
        {"fence": some_number},
        optional={"owner": st.sampled_from(["w", "v"]), "expires": some_time, "data": some_value},
    ),
)
some_fields = st.fixed_dictionaries(
    {},
    optional={
        "fence": some_number,
        "owner": st.none() | st.just("w"),
        "expires": st.none() | some_time,
        "state": st.sampled_from(["fresh", "ready"]),
        "data": st.none() | some_value,
        "not_before": st.none() | some_time,
    },
)
some_state = st.fixed_dictionaries(
    {},
    optional={
        "fence": some_number,
        "owner": st.none() | st.just("w"),
        "state": st.just("ready"),
        "not_before": st.none(),
    },
)


def of_members(field: str, **edit: st.SearchStrategy[Any]) -> st.SearchStrategy[port.Edit]:
    """Return edits that set some members of a field and remove others."""
    return st.builds(
        lambda new, gone, edit: port.Edit(
            merge={field: new}, without={field: gone - new.keys()}, **edit
        ),
        some_members,
        st.sets(some_member),
        st.fixed_dictionaries(edit),
    )


some_reading = called(
    "sessions", "read", st.lists(some_name | st.just("eve"), min_size=1, unique=True)
)
sessions = (
    called("sessions", "insert", st.lists(some_session, max_size=2, unique_by=lambda s: s["_id"])),
    changes("sessions", written(some_name, some_state, st.builds(port.Edit, set=some_fields))),
    changes(
        "sessions",
        written(
            some_name,
            some_state,
            of_members(
                "cookies",
                inc=st.fixed_dictionaries({"score": some_number}, optional={"fence": some_number}),
                set=st.fixed_dictionaries(
                    {}, optional={"login_probe": st.just("https://a.example/")}
                ),
            ),
        ),
    ),
    some_reading,
    called("sessions", "scan", (st.none() | some_name).map(behind), limit=st.integers(1, 2)),
    called("sessions", "delete", st.just({})),
)

# The marker: a single document.

some_part = st.sampled_from(["state", "control", "policy"])
marker = (
    changes(
        "marker",
        written(st.sampled_from(["books", "nobody"]), st.just({}), some_part.flatmap(of_members)),
    ),
    called("marker", "read", st.just(["books"]), fields=some_part.map(lambda part: [part])),
)

# The state of a spider: SQLite has a row for each member.

some_revision = st.integers(1, 3)
some_state_test = st.fixed_dictionaries(
    {},
    optional={
        "revision": some_revision | some_revision.map(port.Not),
        "values": st.just(port.Not({})),
    },
)
some_named = st.dictionaries(some_member | st.just('"q'), some_value, max_size=3)
state = (
    called(
        "state",
        "insert",
        st.tuples(
            st.builds(
                lambda **fields: {"_id": "state", **fields},
                revision=some_revision,
                values=some_named,
                pending=some_named,
            )
        ),
    ),
    changes(
        "state",
        written(
            st.just("state"),
            some_state_test,
            of_members("values", set=st.fixed_dictionaries({"revision": some_revision}))
            | of_members("pending", inc=st.fixed_dictionaries({"revision": some_revision}))
            | st.just(port.Edit(set={"values": {}, "pending": {}}, inc={"revision": 1})),
        ),
    ).filter(lambda call: len(call.args[0]) == 1),
    called("state", "read", st.just(["state"]), where=some_state_test),
)

# Hosts, which have indexes of some fields.

some_host = st.sampled_from(["a.example", "a.example:80", "b.example"])
some_owner = st.sampled_from(["v:1", "w:1", "w:2"])
some_host_document = st.builds(
    lambda name, fields: documents.host_document(Host(name=name, **fields)),
    some_host,
    st.fixed_dictionaries(
        {}, optional={"ready_at": some_time, "owner": some_owner, "failures": st.integers(0, 2)}
    ),
)
some_host_test = st.fixed_dictionaries(
    {},
    optional={
        "_id": st.builds(port.Within, st.just("") | some_host, st.none() | some_host),
        "owner": st.none() | some_owner,
        "failures": st.integers(0, 1).map(port.After),
    },
)
some_host_edit = st.builds(
    port.Edit,
    set=st.fixed_dictionaries(
        {},
        optional={
            "ready_at": st.none() | some_time,
            "owner": st.none() | some_owner,
            "failures": st.integers(0, 2),
        },
    ),
)
#: Indexes, and their fields; documents with equal fields have no order.
HOST_PATHS = {
    port.Path.READY: ["ready_at"],
    port.Path.LAST_READY: ["ready_at"],
    port.Path.OWNER: ["owner"],
}
some_number_of_documents = st.integers(1, 4)


def by_index(
    table: str, paths: Mapping[port.Path, list[str]], where: st.SearchStrategy[Any]
) -> st.SearchStrategy[Call]:
    return st.sampled_from([*paths]).flatmap(
        lambda by: called(
            table,
            "scan",
            where,
            by=st.just(by),
            limit=some_number_of_documents,
            fields=st.just(paths[by]),
        )
    )


hosts = (
    called(
        "hosts", "insert", st.lists(some_host_document, max_size=3, unique_by=lambda h: h["_id"])
    ),
    called("hosts", "change_where", some_host_test, some_host_edit),
    called(
        "hosts",
        "change_where",
        some_owner.map(lambda owner: {"owner": port.Within(owner, f"{owner[:2]};")}),
        some_host_edit,
        by=st.just(port.Path.OWNER),
    ),
    by_index("hosts", HOST_PATHS, some_host_test),
    called(
        "hosts",
        "scan",
        (st.none() | some_host).map(behind),
        limit=some_number_of_documents,
        fields=st.just(["_id", "owner"]),
    ),
)

# Tasks, which have indexes.

some_id = st.integers(0, 5).map(lambda n: bytes([n]) * 16)
some_ids = st.lists(some_id, min_size=1, max_size=4, unique=True)
some_status = st.sampled_from([int(status) for status in Status])
some_url = st.builds("http://{}/{}".format, some_host, st.sampled_from(["", "a%", "A.b"]))
some_reason = st.sampled_from(["tls", "connect"])
some_task = st.builds(
    lambda task_id, url, host, fields: {
        **documents.document(make_task()),
        "_id": task_id,
        "url": url,
        "host": host,
        **fields,
    },
    some_id,
    some_url,
    some_host,
    st.fixed_dictionaries(
        {"status": some_status, "update_time": some_time, "due": some_time},
        optional={
            "priority": st.integers(-1, 1),
            "reason": some_reason,
            "quarantine_fence": some_number,
            "revisit": some_time,
        },
    ),
)
some_range = (
    st.tuples(st.none() | some_time, st.none() | some_time)
    .filter(any)
    .map(lambda ends: port.Within(*ends))
)
some_urls = st.sampled_from(["http://", "http://a.example", "http://b"]).map(beginning_with)
some_text = st.sampled_from(["a%", "A.", ".example"])
some_choice = st.fixed_dictionaries(
    {"status": st.lists(some_status, min_size=1, unique=True).map(port.Among)},
    optional={
        "update_time": some_range,
        "url": some_urls
        | st.builds(port.Containing, st.sampled_from(["a%", "A.", ".example"]), some_urls),
        "due": some_time.map(port.AtMost),
        "depth": st.integers(0, 1).map(port.AtMost),
        "lock": st.none(),
        "quarantine_fence": some_number.map(port.Not),
    },
)
NARROW = {
    port.Path.HOST: some_host | st.just(beginning_with("a.")),
    port.Path.REASON: some_reason | st.lists(some_reason, min_size=1, unique=True).map(port.Among),
}
some_way = st.sampled_from([port.Path.STATUS, port.Path.AS_STORED, *NARROW]).flatmap(
    lambda by: st.tuples(
        st.just(by),
        some_choice
        if by not in NARROW
        else st.tuples(some_choice, NARROW[by]).map(lambda both: {**both[0], by.value: both[1]}),
    )
)
some_cursor = st.none() | st.builds(Cursor, update_time=some_time, id=some_id)
some_task_edit = st.builds(
    port.Edit,
    set=st.fixed_dictionaries(
        {"status": some_status},
        optional={
            "due": st.none() | some_time,
            "reason": st.none() | some_reason,
            "lock": st.none() | st.just("w:1"),
            "update_time": some_time,
        },
    ),
    inc=st.fixed_dictionaries({}, optional={"fence": some_number}),
    raise_to=st.fixed_dictionaries({}, optional={"quarantine_fence": some_number}),
)


def by_way(name: str, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return some_way.flatmap(
        lambda way: called("tasks", name, st.just(way[1]), by=st.just(way[0]), **options)
    )


some_task_test = st.fixed_dictionaries(
    {},
    optional={
        "host": some_host | some_host.map(port.After),
        "priority": st.integers(0, 1).map(lambda end: port.Within(None, end)) | st.integers(-1, 1),
        "due": some_time.map(port.After) | some_time.map(lambda first: port.Within(first, None)),
        "errback": st.none() | st.just(port.Not(None)),
    },
)
TASK_PATHS = {
    port.Path.DUE: ["priority", "due"],
    port.Path.HOST_DUE: ["host", "priority", "due"],
}
some_revisit_test = st.fixed_dictionaries(
    {"status": st.just(port.Among((50, 70))), "revisit": some_time.map(port.AtMost)}
)
tasks = (
    called("tasks", "insert", st.lists(some_task, max_size=4, unique_by=lambda task: task["_id"])),
    called("tasks", "look", some_choice, limit=some_number_of_documents, after=some_cursor),
    by_way("find", limit=some_number_of_documents, after=some_cursor),
    by_index("tasks", TASK_PATHS, some_task_test),
    by_index("tasks", {port.Path.REVISIT: ["revisit"]}, some_revisit_test),
    by_way("count"),
    by_way("at_most", most=some_number_of_documents).filter(
        lambda call: call.options["by"] is not port.Path.AS_STORED
    ),
    called(
        "tasks",
        "count",
        st.lists(some_choice, min_size=1, max_size=2).map(lambda some: {port.OR: some}),
        by=st.just(port.Path.AS_STORED),
    ),
    called("tasks", "change_all", some_ids, some_choice, some_task_edit),
    changes("tasks", written(some_id, some_choice, some_task_edit)),
    called("tasks", "delete_all", some_ids, some_choice),
    called(
        "tasks",
        "read",
        some_ids,
        fields=st.just(["status", "quarantine_fence", "fence"]),
        where=some_choice,
    ),
)

some_calls = st.lists(st.one_of(*rates, *sessions, *marker, *state, *hosts, *tasks), max_size=20)
TABLES = ("rates", "sessions", "hosts")
READING = {"read", "scan", "look", "find", "count", "at_most"}


_ID = bytes(16)
#: A write whose condition fails for the task: random writes may include none.
A_GUARDED_WRITE = [
    Call("tasks", "insert", ([documents.document(make_task()) | {"_id": _ID}],), {}),
    Call(
        "tasks", "change", ([port.Write(_ID, {"status": 20}, port.Edit(set={"status": 50}))],), {}
    ),
    Call("tasks", "read", ([_ID],), {"fields": ["status"], "where": {}}),
]
#: Control characters in names and keys keep their order, which random texts may not show.
_CONTROLS = ["a", "a\0", "a\0b", "a\1", "a\1\1", "a\1\2", "a\2", "a\ue000"]
CONTROL_CHARACTERS = [
    *(
        Call("sessions", "insert", ([{"_id": name, "fence": 1, "state": "ready", "score": 0}],), {})
        for name in _CONTROLS
    ),
    *(Call("sessions", "scan", (behind(name),), {"limit": 9}) for name in _CONTROLS),
    Call(
        "tasks",
        "insert",
        (
            [
                documents.document(make_task()) | {"_id": bytes([n]) * 16, "url": name}
                for n, name in enumerate(_CONTROLS[:6])
            ],
        ),
        {},
    ),
    *(
        Call("tasks", "find", ({"status": port.Among((0,)), "url": url},), {"limit": 9, "by": by})
        for by in (port.Path.STATUS, port.Path.AS_STORED)
        for name in _CONTROLS
        for url in (beginning_with(name), port.Containing(name, beginning_with("a")))
    ),
]


async def emptied(unit: port.Unit) -> None:
    """Empty the documents that a deletion without keys leaves."""
    await unit.tasks.delete_all([bytes([n]) * 16 for n in range(6)], {})
    parts = dict.fromkeys(("state", "control", "policy"))
    await unit.marker.change([port.Write("books", {}, port.Edit(set=parts))])
    first = {"revision": 1, "values": {}, "pending": {}}
    await unit.state.insert([{"_id": "state", **first}])
    await unit.state.change([port.Write("state", {}, port.Edit(set=first))])


async def answers(store: port.Store, calls: list[Call]) -> list[Any]:
    """Empty a store, run each call as a unit, and return the results."""
    for table in TABLES:
        await store.writing(Call(table, "delete", ({},), {}).on)
    await store.writing(emptied)
    everything = [Call(table, "scan", ({},), {"limit": 100}) for table in TABLES]
    return [
        await (store.reading if call.name in READING else store.writing)(call.on)
        for call in [*calls, *everything]
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_answers_as_the_model_does(
    backend: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path
):
    request.param = backend
    ledgers = on_backend(request, tmp_path)
    with asyncio.Runner() as runner:
        store = runner.run(ledgers.open()).store

        @settings(
            max_examples=100,
            derandomize=True,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
        )
        @example(A_GUARDED_WRITE)
        @example(CONTROL_CHARACTERS)
        @given(some_calls)
        def check(calls: list[Call]) -> None:
            expected = runner.run(answers(DictStore(), calls))
            assert runner.run(answers(store, calls)) == expected

        try:
            check()
        finally:
            runner.run(ledgers.close())


@pytest.mark.parametrize("backend", BACKENDS)
async def test_what_no_store_can_hold_is_refused_and_takes_nothing_with_it(
    backend: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path
):
    request.param = backend
    ledgers = on_backend(request, tmp_path)
    store = (await ledgers.open()).store
    ada = {"_id": "ada", "fence": 1, "state": "ready", "score": 0, "cookies": {}}
    await store.writing(Call("sessions", "insert", ([ada],), {}).on)
    half = "\ud800"
    calls = [
        Call("sessions", "insert", ([{**ada, "_id": "bob", "data": half}],), {}),
        Call("sessions", "change", ([port.Write("ada", {}, port.Edit(set={"data": half}))],), {}),
        Call(
            "state",
            "change",
            ([port.Write("state", {}, port.Edit(merge={"values": {"a": half}}))],),
            {},
        ),
    ]

    for call in calls:
        with pytest.raises(LedgerError):
            await store.writing(call.on)

    found = await store.reading(Call("sessions", "scan", ({},), {"limit": 9}).on)
    assert found == [without_nothing(ada)]
    await ledgers.close()
