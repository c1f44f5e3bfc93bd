"""Ledgers with one protection removed, which the suite must detect.

A pytest plugin: `pytest -p tests.faults.mutants` with the variable
CRAWLCW_TEST_MUTANT runs tests against the mutant of that name. A mutant finds
its place by the text of the source, and reports an error if the text has changed.
"""

import builtins
import dis
import importlib
import inspect
import os
import textwrap
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

VARIABLE = "CRAWLCW_TEST_MUTANT"

_LEDGER = "crawlcw.ledger"
_MONGO = "crawlcw.ledger.mongo"
_UPDATES = "crawlcw.ledger.mongo.updates"
_COMMITTER = "crawlcw.crawl.committer"
_CONTRACT = "tests/ledger/test_ledger_contract.py::test_"
_BY_KEY_ONLY = ('{"lock": token, "fence": fence, "status": int(Status.PROCESSING)}', "{}")
_HOSTS = "tests/ledger/test_hosts_contract.py::test_"
_WRITING = "tests/crawl/test_committer.py::test_"
_OPERATIONS = "tests/faults/test_operations.py::test_"
_LATE = _OPERATIONS + "what_arrives_after_the_operation_was_repeated_changes_nothing"


class Edit:
    """A function, and the replacements in its source."""

    def __init__(self, module: str, function: str, *changes: tuple[str, str]) -> None:
        """Edit *function*, `Class.method` or `function`; a change is a pair of old and new text."""
        self.module = module
        self._function = function
        self._changes = changes

    def changed(self) -> tuple[Any, str]:
        """Return the function and its changed source; raises `ValueError` if they do not fit."""
        owner, name = self.place(importlib.import_module(self.module))
        function = getattr(owner, name)
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in self._changes:
            if source.count(old) != 1:
                raise ValueError(f"{self._function} has {source.count(old)} times {old!r}")
            source = source.replace(old, new)
        known = function.__globals__.keys() | vars(builtins).keys()
        if unknown := _globals_of(compile(source, self._function, "exec")) - known:
            raise ValueError(f"{self._function} would read unknown names: {unknown}")
        return function, source

    def apply(self) -> None:
        """Replace the function by one compiled from the changed source."""
        function, source = self.changed()
        made: dict[str, Any] = {}
        exec(source, function.__globals__, made)
        # In place, since other modules have imported it by name.
        function.__code__ = made[function.__name__].__code__

    def place(self, module: ModuleType) -> tuple[Any, str]:
        owner, _, name = self._function.rpartition(".")
        return (getattr(module, owner) if owner else module), name


def _globals_of(code: CodeType) -> set[str]:
    """Return the global names that the functions in *code* read."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    names = {
        instruction.argval
        for function in inner
        for instruction in dis.get_instructions(function)
        if instruction.opname == "LOAD_GLOBAL"
    }
    return names.union(*map(_globals_of, inner))


def _without(function: str, *pieces: str, module: str = _MONGO) -> Edit:
    return Edit(module, function, *((piece, "") for piece in pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One protection removed, and the tests of the suite that fail without it."""

    name: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]


_DUE = '"due": {"$lte": now},'
_ADD = "        added = await self.adder.add(links, too_deep)\n"
_ADD_BESIDE = "        adding = asyncio.create_task(self.adder.add(links, too_deep))\n"
_COMMIT = "        await self._commit(settlements, positions)\n"

MUTANTS = [
    Mutant(
        name="commit-by-id-only",
        edits=(
            _without(
                "lease_guard",
                '"lock": lease.token,',
                '"fence": lease.fence,',
                '"status": int(Status.PROCESSING),',
                module=_UPDATES,
            ),
        ),
        caught_by=(
            _CONTRACT + "a_commit_of_a_stale_lease_is_lost_after_the_newer_one_too[pymongo]",
            _LATE + "[commit-late-finished]",
        ),
    ),
    Mutant(
        name="commit-tests-status-only",
        edits=(
            _without(
                "lease_guard", '"lock": lease.token,', '"fence": lease.fence,', module=_UPDATES
            ),
        ),
        caught_by=(
            _CONTRACT + "a_stale_commit_writes_nothing_and_is_named[pymongo]",
            _OPERATIONS
            + "an_operation_that_is_sent_again_too_late_changes_nothing[mongodb-commit]",
        ),
    ),
    Mutant(
        name="take-over-does-not-repeat-the-expiry-test",
        edits=(_without("Leases._claim_one", _DUE, module=f"{_MONGO}.leases"),),
        caught_by=(_CONTRACT + "a_lease_renewed_since_the_page_is_not_taken_over[pymongo]",),
    ),
    Mutant(
        name="links-after-the-commit",
        edits=(Edit(_COMMITTER, "Committer._write", (_ADD + _COMMIT, _COMMIT + _ADD)),),
        caught_by=(
            _WRITING + "links_are_added_first_and_each_once",
            _WRITING + "of_links_that_were_not_announced_the_page_is_not_committed",
        ),
    ),
    Mutant(
        name="commit-does-not-wait-for-its-links",
        edits=(
            Edit(
                _COMMITTER,
                "Committer._write",
                (_ADD + _COMMIT, _ADD_BESIDE + _COMMIT + "        added = await adding\n"),
            ),
        ),
        caught_by=(
            _WRITING + "links_are_added_first_and_each_once",
            _WRITING + "of_links_that_were_not_announced_the_page_is_not_committed",
        ),
    ),
    Mutant(
        name="no-fence-on-oversize-items",
        edits=(
            _without("placed", '"fence": fence, ', module=f"{_MONGO}.blobs"),
            _without(
                "Items.stored_items",
                ', "fence": task["items_from"]["fence"]',
                module=f"{_MONGO}.blobs",
            ),
        ),
        caught_by=(_OPERATIONS + "a_large_item_that_comes_too_late_is_not_seen[mongodb]",),
    ),
    Mutant(
        name="claim-ignores-due",
        edits=(
            _without("Leases._claim_one", _DUE, module=f"{_MONGO}.leases"),
            _without("Leases._claim_together", _DUE, module=f"{_MONGO}.leases"),
            Edit(
                "crawlcw.model.transitions",
                "claim",
                (" or task.due > now or", " or"),
            ),
        ),
        caught_by=(
            _CONTRACT + "what_is_not_due_is_not_claimed[pymongo]",
            _CONTRACT + "what_is_not_due_is_not_claimed[pymongo-batch]",
        ),
    ),
    Mutant(
        name="batched-claim-ignores-the-fence",
        edits=(Edit(f"{_MONGO}.leases", "Leases._claim_together", ('"fence": fence, ', "")),),
        caught_by=(_LATE + "[claim-batch-twice-given-back]",),
    ),
    Mutant(
        name="every-lost-lease-counts",
        edits=(
            Edit(
                "crawlcw.model.transitions",
                "losses",
                (" and task.quarantine_fence == task.fence", ""),
            ),
        ),
        caught_by=(_CONTRACT + "a_task_that_nobody_has_begun_with_alone_loses_no_lease[pymongo]",),
    ),
    Mutant(
        name="who-lost-the-lease-begins",
        edits=(Edit(f"{_LEDGER}.workers", "_leased_write", _BY_KEY_ONLY),),
        caught_by=(_CONTRACT + "a_task_that_nobody_has_begun_with_alone_loses_no_lease[pymongo]",),
    ),
    Mutant(
        name="renewal-sets-its-own-end",
        edits=(
            Edit(f"{_MONGO}.leases", "Leases.renew", ('{"$max": ', '{"$set": ')),
            Edit(f"{_LEDGER}.hosts", "HostLeases.renew", ("raise_to=", "set=")),
        ),
        caught_by=(_LATE + "[renew-late-renewed]", _LATE + "[renew_hosts-late-renewed]"),
    ),
]


_SQL = f"{_LEDGER}.sql"
_FAULT = _OPERATIONS + "an_operation_comes_to_the_same_with_a_fault"
_TOO_LATE = _OPERATIONS + "an_operation_that_is_sent_again_too_late_changes_nothing"
_COMMIT_LATE = _OPERATIONS + "an_operation_comes_to_the_same_while_its_commit_is_late"
_LOST_CLAIM = "tests/faults/test_lost_claims.py::test_"
_HELD_BY_LEASE = "id = :id AND lock = :lock AND fence = :fence AND status = :status"

#: Protections in SQL, shown on PostgreSQL: its transactions work side by side, over a network.
SQL_MUTANTS = [
    Mutant(
        name="sql-commit-by-id-only",
        edits=(
            Edit(
                f"{_SQL}.outcomes",
                "Outcomes._commit",
                (
                    "writes.append((write, lease_guard(lease)))",
                    'writes.append((write, {"id": lease.task.id}))',
                ),
            ),
        ),
        caught_by=(_CONTRACT + "a_stale_commit_writes_nothing_and_is_named[postgres]",),
    ),
    Mutant(
        name="sql-renewal-by-id-only",
        edits=(
            Edit(f"{_SQL}.statements", "Statements._of_leases", (_HELD_BY_LEASE, "id = :id")),
            Edit(f"{_LEDGER}.workers", "_leased_write", _BY_KEY_ONLY),
        ),
        caught_by=(_TOO_LATE + "[postgres-renew]", _TOO_LATE + "[postgres-save]"),
    ),
    Mutant(
        name="sql-claim-ignores-due",
        edits=(_without("Leases._claim", ', "due": now', module=f"{_SQL}.leases"),),
        caught_by=(_CONTRACT + "a_lease_renewed_since_the_page_is_not_taken_over[postgres]",),
    ),
    Mutant(
        name="sql-claim-ignores-the-fence",
        edits=(_without("Leases._claim", '"fence": task.fence, ', module=f"{_SQL}.leases"),),
        caught_by=(_CONTRACT + "a_page_from_before_a_release_repeats_no_fence[postgres]",),
    ),
    Mutant(
        name="sql-claim-ignores-the-status",
        edits=(_without("Leases._claim", '"status": int(task.status), ', module=f"{_SQL}.leases"),),
        caught_by=(
            _CONTRACT + "a_page_from_before_a_late_failure_does_not_take_it_back[postgres]",
        ),
    ),
    Mutant(
        name="sql-host-is-written-by-its-name-only",
        edits=(
            Edit(
                f"{_LEDGER}.hosts",
                "_write_edits",
                ('{"owner": lease.token, "epoch": lease.epoch}', "{}"),
            ),
        ),
        caught_by=tuple(
            f"{_TOO_LATE}[postgres-{name}]"
            for name in ("renew_hosts", "save_hosts", "release_hosts")
        ),
    ),
    Mutant(
        name="sql-commit-sent-twice-was-lost",
        edits=(
            Edit(
                f"{_SQL}.outcomes",
                "Outcomes._was_settled",
                ('row["settled"] == lease.fence', "False"),
            ),
        ),
        caught_by=(_FAULT + "[postgres-commit-reply-lost]", _COMMIT_LATE + "[commit]"),
    ),
    Mutant(
        name="a-release-of-hosts-was-lost",
        edits=(
            Edit(
                f"{_LEDGER}.hosts",
                "_is_written",
                ('document.get("released") == lease.epoch', "False"),
            ),
        ),
        caught_by=(f"{_HOSTS}who_lost_a_host_writes_nothing_and_is_named[postgres-release]",),
    ),
    Mutant(
        name="sql-claim-not-answered-is-forgotten",
        edits=(
            Edit(
                f"{_SQL}.leases",
                "Leases._note_unconfirmed",
                ("for lease in leases", "for lease in ()"),
            ),
        ),
        caught_by=(
            _LOST_CLAIM + "the_same_claim_sent_again_has_every_lease_of_the_first[postgres]",
        ),
    ),
    Mutant(
        name="sql-hosts-not-answered-are-forgotten",
        edits=(
            Edit(
                f"{_LEDGER}.hosts",
                "HostLeases.lease",
                ("self._unconfirmed.append(token)", "pass"),
            ),
        ),
        caught_by=(_FAULT + "[postgres-lease_hosts-reply-lost]",),
    ),
    Mutant(
        name="postgres-late-commits-are-not-waited-for",
        edits=(
            _without(
                "Leases._adopt",
                "db.execute(self._store.sql.lock_task, (lease.task.id,))",
                module=f"{_SQL}.leases",
            ),
            _without(
                "_adopt",
                "await tables.host_leases.change([Write(name, {}, Edit()) for name in names])",
                module=f"{_LEDGER}.hosts",
            ),
        ),
        caught_by=(_COMMIT_LATE + "[claim]", _COMMIT_LATE + "[lease_hosts]"),
    ),
]


def pytest_configure() -> None:
    """Run the tests of this process against the mutant that the environment names."""
    name = os.environ.get(VARIABLE)
    for mutant in [*MUTANTS, *SQL_MUTANTS]:
        if mutant.name == name:
            for edit in mutant.edits:
                edit.apply()
