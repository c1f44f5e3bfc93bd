"""A ledger without any one of its protections fails the tests of that protection."""

import os
import re
import subprocess
import sys

import pytest

from tests.faults.mutants import MUTANTS, SQL_MUTANTS, VARIABLE, Edit, Mutant
from tests.faults.test_loans import WITHOUT as WITHOUT_LOANS
from tests.faults.test_model import WITHOUT, WITHOUT_SQL
from tests.support import mongod
from tests.support.docs import REPOSITORY

pytestmark = pytest.mark.thorough

WITHIN = 120.0
EVERY = [*MUTANTS, *SQL_MUTANTS]


def outcome(uri: str, tests: tuple[str, ...], *, mutant: str = "") -> tuple[dict[str, int], str]:
    """Run tests of the suite in a process of their own; return the numbers of their outcomes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, "-p", "tests.faults.mutants", *tests],
        cwd=REPOSITORY,
        env=os.environ | {VARIABLE: mutant, mongod.VARIABLE: uri},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    last = ended.stdout.rstrip().rpartition("\n")[2]
    numbers = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}
    return numbers, ended.stdout + ended.stderr


def test_the_tests_that_catch_mutants_pass_without_them(mongodb_uri: str):
    # Sorted: the fixtures that a file shares are made once.
    tests = tuple(sorted({test for mutant in EVERY for test in mutant.caught_by}))

    numbers, output = outcome(mongodb_uri, tests)

    assert numbers == {"passed": len(tests)}, output


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mongodb_uri: str, mutant: Mutant):
    numbers, output = outcome(mongodb_uri, mutant.caught_by, mutant=mutant.name)

    assert numbers == {"failed": len(mutant.caught_by)}, output


@pytest.mark.representative
def test_every_mutant_fits_the_source():
    removed = [*(mutant.edits for mutant in EVERY), *WITHOUT.values(), *WITHOUT_SQL.values()]
    for edit in (*(edit for edits in removed for edit in edits), *WITHOUT_LOANS.values()):
        edit.changed()


@pytest.mark.representative
def test_a_mutant_that_does_not_fit_the_source_says_so():
    edit = Edit("crawlcw.ledger.mongo.updates", "lease_guard", ("no such line", ""))

    with pytest.raises(ValueError, match="lease_guard has 0 times 'no such line'"):
        edit.apply()


@pytest.mark.representative
def test_a_mutant_that_reads_an_unknown_name_says_so():
    edit = Edit("crawlcw.ledger.mongo.updates", "lease_guard", ("lease.token", "nosuch"))

    with pytest.raises(ValueError, match=r"lease_guard would read unknown names: .'nosuch'"):
        edit.apply()
