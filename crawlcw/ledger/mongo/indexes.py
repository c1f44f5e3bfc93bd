"""The indexes by their names, and the hints by which a query uses one of them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from crawlcw.errors import Reason
from crawlcw.model.task import Status

#: Its keys, and the condition of a document in it.
Index = tuple[list[tuple[str, int]], dict[str, Any]]
Indexes = Mapping[str, Index]  #: by name
#: An upper bound of priorities: without a bound on the index's first field the
#: second one is not used as a range, and every deferred task is read as well.
ANY_PRIORITY = 1_000
#: Earlier than any time in a ledger: as a bound it lets an index alone answer.
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
HAS_DUE = {"due": {"$exists": True}}

BY_HOST = "host_priority_due"
BY_PRIORITY = "priority_due"
#: With the id behind equal times, for `find` goes on where it has come to.
BY_STATUS = "status_update_time_id"
BY_REVISIT = "revisit"
#: Those that may be visited again: finished, or ignored. Not those that are again `todo`.
MAY_BE_REVISITED = {"status": {"$gte": int(Status.FINISHED)}}
#: Those below never change with a status, or have those tasks alone that are done, or failed:
#: a claim touches none of them.
BY_HOST_NAME = "host"
BY_CALLBACK = "callback_depth"
DONE_BY_HOST = "done_host_status"
DONE_BY_CALLBACK = "done_callback_status_depth"
BY_ANSWER = "done_response_status"
BY_REASON = "reason_status"
FAILED_BY_HOST = "failed_host_callback_status"
#: The filter of those that failed and wait, as their index has it.
HAS_FAILED = {"status": int(Status.FAILED)}
#: The filter of those that are done, as their indexes have it.
IS_DONE = MAY_BE_REVISITED
#: The filter of finished tasks that are no pages.
_IS_FINISHED = {"status": int(Status.FINISHED)}
IS_REDIRECT = {"reason": str(Reason.REDIRECT), **_IS_FINISHED}
INDEXES: Indexes = {
    BY_HOST: ([("host", 1), ("priority", -1), ("due", 1)], HAS_DUE),
    BY_PRIORITY: ([("priority", -1), ("due", 1)], HAS_DUE),
    BY_STATUS: ([("status", 1), ("update_time", -1), ("_id", -1)], {}),
    BY_REVISIT: ([("revisit", 1)], {"revisit": {"$exists": True}, **MAY_BE_REVISITED}),
    BY_HOST_NAME: ([("host", 1)], {}),
    BY_CALLBACK: ([("callback", 1), ("depth", 1)], {}),
    DONE_BY_HOST: ([("host", 1), ("status", 1)], IS_DONE),
    DONE_BY_CALLBACK: ([("callback", 1), ("status", 1), ("depth", 1)], IS_DONE),
    BY_ANSWER: ([("response.status", 1), ("status", 1)], IS_DONE),
    BY_REASON: ([("reason", 1), ("status", 1)], {"reason": {"$exists": True}}),
    # With the status at its end: the server would read the tasks for it.
    FAILED_BY_HOST: ([("host", 1), ("callback", 1), ("status", 1)], HAS_FAILED),
}

BY_READY = "ready_at"
BY_OWNER = "owner"
HOST_INDEXES: Indexes = {
    BY_READY: ([("ready_at", 1)], {"ready_at": {"$exists": True}}),
    # Only of the hosts that are held: `leave` must not read all the others.
    BY_OWNER: ([("owner", 1)], {"owner": {"$gt": ""}}),
}

BY_TASK = "task"
ITEM_INDEXES: Indexes = {BY_TASK: ([("_id.task", 1)], {})}
BLOB_INDEXES: Indexes = {BY_TASK: ([("metadata.task", 1)], {})}

BY_LEFT = "left"
WORKER_INDEXES: Indexes = {
    BY_LEFT: ([("left", 1), ("_id", 1)], {}),
}
