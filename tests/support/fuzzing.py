"""Tests with generated inputs: some examples in every run, many more in thorough ones."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Check = Callable[..., None]

#: Addresses, whole and in parts; `soup` puts them together.
URL_PIECES = """
    http: https: HTTP: http:// https:// // / /// \\ \\\\ @ : user u:p@ [ ] [::1] [::ffff:1.2.3.4]
    [fe80::1%25eth0] [v1.a] 127.0.0.1 127.1 0x7f.1 017700000001 2130706433 ①②⑦.⓪.⓪.① 。 ． ｡
    example.com EXAMPLE.com example.com. localhost xn-- xn--a xn--bcher-kva.example bücher.example
    ß İ ſ K %2e %2f %5c %00 %0a %0d%0a %20 %23 %25 %3f %40 %3a %5B %C3%BC %c3 %ff % %% %zz %u0041
    .. ... ../ ./ ; /./ /../ //..// ? # & = + a=1 b=2 é ／ ？ ＃ ＠ ： ℀ ⁄ :0 :80 :443 :8080
    :65535 :65536 :99999999999 :-1 :+80 :８０ :٣ a Z ~ | ^ ` { } < > " ' ( ) * ! $ , _ - --
    mailto: javascript: data: ftp:// file:/// c:/
""".split()  # noqa: RUF001, SIM905  # as a list it would be five times as long
UNSEEN = [*"\t\n\r\0\x0b\x0c\x1b\x7f\x85 \xa0\xad\u200b\u202e\u2028\u3000\ufeff\ud800\udfff", "😀"]


def fuzzed(*, quick: int, thorough: int, **inputs: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """Run a test on *quick* fixed examples, and on *thorough* random ones in thorough runs.

    The examples of `@example` below this decorator come first. For a longer run,
    call the test by hand: `test_something(examples=20_000)`.
    """

    def decorate(check: Check) -> Check:
        @pytest.mark.parametrize(
            "examples", [quick, pytest.param(thorough, marks=pytest.mark.thorough)]
        )
        def fuzz(examples: int) -> None:
            # The few examples are the same in each run, so that a change alone turns them red.
            chosen = settings(
                max_examples=examples,
                derandomize=examples == quick,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            chosen(given(**inputs)(check))()

        fuzz.__name__ = check.__name__
        fuzz.__doc__ = check.__doc__
        fuzz.__module__ = check.__module__
        return fuzz

    return decorate


def soup(pieces: list[str], *, most: int = 8) -> st.SearchStrategy[str]:
    """Return texts that join some *pieces* and other characters at random."""
    return st.lists(st.sampled_from(pieces) | st.characters(codec=None), max_size=most).map("".join)
