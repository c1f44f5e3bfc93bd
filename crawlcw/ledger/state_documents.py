"""How a spider's state is written down.

Both ledgers use these names; the state is one document:

    _id          "state"
    revision     the number of times that it was written
    values       {name: {value, place}}
    pending      {run: {name: {kind, place, value}}}, a run as `<task id in hex>-<fence>`

Names and the keys in values are escaped, for they may be any text.
"""

from collections.abc import Mapping
from typing import Any

from crawlcw.ledger.documents import Document, escaped, unescaped
from crawlcw.model.frozen import frozen
from crawlcw.model.spider_state import Change, Kind, Operation, Run, StoredState, Value, sized
from crawlcw.model.values import size

STATE_ID = "state"


def state_document(state: StoredState) -> Document:
    """Return a state as it is stored."""
    return {
        "_id": STATE_ID,
        "revision": state.revision,
        "values": escaped({name: value_document(each) for name, each in state.values.items()}),
        "pending": {run_text(run): change_document(each) for run, each in state.pending.items()},
    }


def stored_state(found: Mapping[str, Any]) -> StoredState:
    """Return the state of a document."""
    return StoredState(
        revision=found["revision"],
        values={name: _value(each) for name, each in unescaped(found["values"]).items()},
        pending={_run(run): _change(each) for run, each in found["pending"].items()},
    )


def value_document(value: Value) -> Document:
    """Return a value as it is stored, its keys not escaped yet."""
    return {"value": value.value, "place": value.place}


def change_document(change: Change) -> Document:
    """Return what a page has changed as it is stored."""
    found: Document = escaped({name: _operation_document(each) for name, each in change.items()})
    return found


def run_text(run: Run) -> str:
    """Return the name of a run."""
    return f"{run[0].hex()}-{run[1]}"


def _operation_document(operation: Operation) -> Document:
    found: Document = {"kind": str(operation.kind), "place": operation.place}
    if operation.kind is not Kind.DELETE:
        found["value"] = operation.value
    return found


def _value(found: Mapping[str, Any]) -> Value:
    return sized(frozen(found["value"]), found["place"])


def _run(text: str) -> Run:
    task_id, _, fence = text.rpartition("-")
    return bytes.fromhex(task_id), int(fence)


def _change(found: Mapping[str, Any]) -> Change:
    return {
        name: Operation(Kind(each["kind"]), each["place"], frozen(each.get("value")), size(each))
        for name, each in unescaped(dict(found)).items()
    }
