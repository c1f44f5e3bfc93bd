"""The system's limit for the memory of one call."""

import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from crawlcw.api.markup import with_memory_limit

pytestmark = pytest.mark.quick

MIB = 1 << 20


def limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_DATA)


def test_a_call_gets_so_much_and_no_more():
    before = limits()

    assert len(with_memory_limit(64 * MIB, lambda: bytes(32 * MIB))) == 32 * MIB
    with pytest.raises(MemoryError):
        with_memory_limit(64 * MIB, lambda: bytes(128 * MIB))

    assert limits() == before
    assert len(bytes(128 * MIB)) == 128 * MIB


def test_the_limit_of_before_is_there_again_after_an_error():
    before = limits()

    with pytest.raises(ZeroDivisionError):
        with_memory_limit(MIB, lambda: 1 // 0)

    assert limits() == before


def test_another_thread_is_not_limited():
    def make() -> int:
        assert threading.current_thread() is not threading.main_thread()
        return len(with_memory_limit(MIB, lambda: bytes(64 * MIB)))

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(make).result() == 64 * MIB


def test_a_lower_limit_that_the_process_has_is_kept(monkeypatch: pytest.MonkeyPatch):
    own = (1 << 40, limits()[1])
    monkeypatch.setattr(resource, "getrlimit", lambda _: own)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: pytest.fail("it was changed"))

    assert with_memory_limit(1 << 41, lambda: 7) == 7


def test_nothing_is_limited_where_the_system_tells_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("crawlcw.api.markup._MEMORY_FILE", "/nowhere/statm")

    assert len(with_memory_limit(MIB, lambda: bytes(64 * MIB))) == 64 * MIB
