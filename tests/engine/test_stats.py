"""Finish reasons: a closed list, defined in one place."""

import ast
import json
from pathlib import Path

import pytest

import crawlcw
from crawlcw.model.counters import FinishReason

pytestmark = pytest.mark.quick

PACKAGE = Path(crawlcw.__file__).parent
#: Two reasons whose words have other uses: `failed` is a status and a field of a host's
#: counts, `stopped` is an event of the log.
_OTHER_MEANINGS = {FinishReason.FAILED, FinishReason.FILES_UNWRITABLE, FinishReason.STOPPED}


def test_no_module_but_stats_spells_a_finish_reason():
    spelt = {str(reason) for reason in FinishReason if reason not in _OTHER_MEANINGS}

    found = [
        (path.relative_to(PACKAGE).as_posix(), node.value)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in spelt
    ]

    assert found == [("model/counters.py", str(each)) for each in FinishReason if each in spelt]


def test_no_finish_reason_is_given_or_compared_as_a_string():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(
                    arg="finish_reason" | "reason", value=ast.Constant(value=str(word))
                ):
                    if word:  # "" stands for no reason
                        found.append((path.name, node.value.lineno))
                case ast.Compare(left=ast.Attribute(attr="finish_reason"), comparators=[right]):
                    if isinstance(right, ast.Constant) and isinstance(right.value, str):
                        found.append((path.name, node.lineno))
                case _:
                    pass

    assert found == []


def test_a_finish_reason_is_written_and_compared_as_its_word():
    assert f"{FinishReason.STOPPED_AT_ONCE}" == "stopped-at-once"
    assert json.dumps({"finish_reason": FinishReason.MAX_PAGES}) == '{"finish_reason": "max-pages"}'
    assert FinishReason.DRAINED == "drained"
