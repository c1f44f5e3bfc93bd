"""Protections of one file that no test misses.

    python -m tests.support.protections crawlcw/crawl/hosts.py tests/crawl tests/blame

A protection is a condition, an operand of one, an argument of `min` or `max`, an `except`, a
`suppress`, a shield, the filter of a comprehension, or a statement that calls a function or
writes an attribute. The named tests run once and show which lines each of them passes. Then, for
each protection, a fork of this process takes it out and runs the tests of its lines, the
quickest first, until one fails. A protection that *--seconds* of its tests do not miss is printed.

Mutation testing after DeMillo, Lipton and Sayward (1978), with operators for guards alone. The
code of child processes, class bodies and modules is not changed.
"""

import argparse
import ast
import gc
import os
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import NoReturn, cast

import coverage
import pytest
from _pytest.runner import runtestprotocol

#: A fork whose test takes longer has met an endless loop or wait. Seconds.
_ENDLESS = 20.0
_LOGS = ("log", "logger", "_log", "_logger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """A piece of code, and the file without it."""

    lines: range
    kind: str
    code: str
    source: str  #: the whole file; each line that is left keeps its number


class Source:
    """The source of a file, and its protections."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._starts = [0]
        for line in self._text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def protections(self) -> Iterator[Protection]:
        """Yield the protections within functions."""
        for node in ast.walk(ast.parse(self._text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._within(node, writes=node.name != "__init__")

    def _within(self, node: ast.AST, *, writes: bool) -> Iterator[Protection]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                for part, kind, replacement in self._edits(child, writes=writes):
                    yield self._without(part, kind, replacement)
                yield from self._within(child, writes=writes)

    def _edits(
        self, node: ast.AST, *, writes: bool
    ) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
        """Yield the part to replace, the kind of protection, and the replacement."""
        match node:
            case ast.If(test=test) | ast.IfExp(test=test):
                yield test, "never", "0"
                yield test, "always", "1"
            case ast.While(test=test) if not isinstance(test, ast.Constant):
                yield test, "never", "0"
            case ast.match_case(guard=ast.expr() as guard):
                yield guard, "never", "0"
                yield guard, "always", "1"
            case ast.BoolOp(op=op, values=values):
                word = " and " if isinstance(op, ast.And) else " or "
                for left_out in values:
                    rest = (f"({self._code(each)})" for each in values if each is not left_out)
                    yield node, f"without `{self._code(left_out)}`", word.join(rest)
            case ast.comprehension(ifs=conditions):
                for condition in conditions:
                    yield condition, "no filter", "1"
            case ast.Call(func=ast.Name(id="min" | "max"), args=[_, _, *_] as arguments):
                for argument in arguments:
                    if not isinstance(argument, ast.Starred):
                        yield node, f"only `{self._code(argument)}`", self._code(argument)
            case ast.Call(func=ast.Name(id="suppress")):
                yield node, "suppresses nothing", "suppress()"
            case ast.keyword(arg="shield", value=ast.Constant(value=True) as value):
                yield value, "no shield", "False"
            case ast.ExceptHandler(type=ast.expr() as caught):
                yield caught, "catches nothing", "()"
            case ast.Expr(value=ast.Call() | ast.Await()) if _owner(node.value) not in _LOGS:
                yield node, "left out", "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if writes:
                yield node, "left out", "pass"
            case ast.AugAssign(target=ast.Attribute() | ast.Subscript()) if writes:
                yield node, "left out", "pass"
            case ast.Delete():
                yield node, "left out", "pass"

    def _without(self, part: ast.expr | ast.stmt, kind: str, replacement: str) -> Protection:
        begin, end = self._span(part)
        # Lines keep their numbers: the tests of a line are found by its number.
        padding = "\n" * (self._text[begin:end].count(b"\n") - replacement.count("\n"))
        new = replacement + padding if isinstance(part, ast.stmt) else f"({replacement}{padding})"
        return Protection(
            lines=range(part.lineno, (part.end_lineno or part.lineno) + 1),
            kind=kind,
            code=" ".join(self._code(part).split()),
            source=(self._text[:begin] + new.encode() + self._text[end:]).decode(),
        )

    def _code(self, node: ast.expr | ast.stmt) -> str:
        begin, end = self._span(node)
        return self._text[begin:end].decode()

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )


def _owner(node: ast.expr) -> str:
    """Return `a` of `await a.b(...)`."""
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner) | ast.Await(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return ""
    return node.id


class TakeOut:
    """A pytest plugin: the collected tests run for each protection of a file."""

    def __init__(self, path: Path, *, seconds: float) -> None:
        self._path = path.resolve()
        self._seconds = seconds
        self._tests: dict[int, list[pytest.Item]] = defaultdict(list)  #: by line
        self._took: dict[pytest.Item, float] = {}
        self._misses = Counter[pytest.Item]()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        terminal = session.config.get_terminal_writer()
        for test in session.items:
            if not self._trace(test):
                terminal.line(f"{test.nodeid} fails, and is left out")
        gc.unfreeze()  # `get_objects` leaves out frozen ones
        functions = [
            each
            for each in gc.get_objects()
            if type(each) is FunctionType and each.__code__.co_filename == str(self._path)
        ]
        # Collections of the forks do not copy the pages of this process.
        gc.freeze()
        protections = list(Source(self._path.read_text()).protections())
        unmissed = 0
        for each in protections:
            if passed := self._passed(each, functions):
                unmissed += 1
                terminal.line(f"{each.lines.start:>4} {each.kind}: {each.code} ({passed})")
        terminal.line(f"{len(protections)} protections, {unmissed} that no test misses")
        return True

    def _trace(self, test: pytest.Item) -> bool:
        """Note the lines that the test passes. Return False if it fails."""
        traced = coverage.Coverage(data_file=None, config_file=False, include=[str(self._path)])
        # A test that does not pass through the file is no fault.
        traced.set_option("run:disable_warnings", ["no-data-collected"])
        began = time.monotonic()
        with traced.collect():
            passed = _passes(test)
        if passed:
            self._took[test] = time.monotonic() - began
            for line in traced.get_data().lines(str(self._path)) or ():
                self._tests[line].append(test)
        return passed

    def _passed(self, protection: Protection, functions: list[FunctionType]) -> str:
        """Return the tests that pass without the protection. Empty if one fails."""
        tests = list({test: None for line in protection.lines for test in self._tests[line]})
        if not tests:
            return "no test passes this line"
        # A test that has missed other protections of the file is likely to miss this one.
        tests.sort(key=lambda test: self._took[test] / (1 + self._misses[test]))
        reading, writing = os.pipe()
        fork = os.fork()
        if not fork:
            os.setpgid(0, 0)
            self._run(tests, protection.source, functions, writing)
        os.close(writing)
        passed = 0
        while select.select([reading], [], [], _ENDLESS)[0] and os.read(reading, 1):
            passed += 1
        os.close(reading)
        # The fork is exiting, which keeps its code, or hangs. Its child processes end with it.
        with suppress(ProcessLookupError):
            os.killpg(fork, signal.SIGKILL)
        _, status = os.waitpid(fork, 0)
        if status == 0:
            return f"{passed} of {len(tests)} tests"
        self._misses[tests[passed]] += 1
        return ""

    def _run(
        self, tests: list[pytest.Item], source: str, functions: list[FunctionType], writing: int
    ) -> NoReturn:
        """Write a byte for each test that passes, and exit with 1 if one fails."""
        code = 1
        try:
            _replace(functions, compile(source, self._path, "exec", dont_inherit=True))
            until = time.monotonic() + self._seconds
            for test in tests:
                if not _passes(test):
                    break
                os.write(writing, b".")
                if time.monotonic() > until:
                    code = 0
                    break
            else:
                code = 0
        finally:
            os._exit(code)


def _passes(test: pytest.Item) -> bool:
    # The session as the next item keeps its fixtures, such as a server, and ends all others.
    reports = runtestprotocol(test, log=False, nextitem=cast("pytest.Item", test.session))
    return not any(report.failed for report in reports)


def _replace(functions: list[FunctionType], module: CodeType) -> None:
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(module)}
    for function in functions:
        old = function.__code__
        new = codes.get((old.co_qualname, old.co_firstlineno))
        if new is not None and len(new.co_freevars) == len(old.co_freevars):
            function.__code__ = new


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--seconds", type=float, default=10, help="of tests for one protection")
    options = parser.parse_args()
    arguments = ["-q", "-n", "0", *options.tests]
    return pytest.main(arguments, plugins=[TakeOut(options.file, seconds=options.seconds)])


if __name__ == "__main__":
    sys.exit(main())
