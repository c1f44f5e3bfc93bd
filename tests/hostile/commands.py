"""Every command that shows a crawl, one after the other in one process.

    python -m tests.hostile.commands LEDGER START_URL FOLDER

A line `== ARGUMENTS == CODE` follows the output of each command.
"""

import json
import sys

from crawlcw.cli.main import cli, exit_code
from tests.hostile.evil import EVIL

SPIDER = "spiders/hostile.py"


#: Commands without --ledger: they read a page or a file, or name two ledgers.
_WITHOUT_LEDGER = ("list", "fetch", "parse", "copy")
_PAGES = ("", "reason", "type", "location", "protocol", "header")
#: One file of each format.
_EXPORTS = ("items.jsonl", "items.csv", "items.json", "items.parquet", "items.csv.gz")


def commands(ledger: str, start: str, folder: str) -> list[list[str]]:
    """Return the arguments of each command, those that crawl and work first."""
    run = ["run", SPIDER, "-a", f"start_url={start}", "--log-level", "debug", "--processes", "0"]
    files = [option for name in _EXPORTS for option in ("-o", f"{folder}/{name}")]
    # `fetch` writes a body to a pipe unchanged, as other programs do.
    bodies = [["fetch", f"{start}line"]] if sys.stdout.isatty() else []
    return [
        [*run, "-o", "-"],
        ["run", SPIDER, "-a", f"start_url={start}stop"],
        [*run, "--log-format", "json"],
        ["add", "evil", f"{folder}/tasks.jsonl"],
        ["add", "evil", f"{folder}/tasks.csv"],
        ["add", "evil", f"{folder}/tasks.txt"],
        *(["add", "evil", f"{folder}/{name}.jsonl"] for name in ("lone", "nul", "long", "broken")),
        ["add", "evil", f"{folder}/tasks.csv", "--key", "\x1b[2JFORGED"],
        ["work", f"{folder}/use_case.py", "--drain"],
        ["work", f"{folder}/use_case.py", "--drain", "--log-format", "json"],
        ["stats", "hostile"],
        ["stats", "hostile", "--json"],
        ["hosts", "hostile"],
        ["hosts", "hostile", "--json"],
        ["tasks", "hostile", "--limit", "0"],
        ["tasks", "hostile", "--limit", "0", "--json"],
        ["tasks", "hostile", "--key", start],
        ["export", "hostile", "-o", "-"],
        ["export", "hostile", "-o", "-", "--follow"],
        ["export", "hostile", "-o", "-:csv"],
        ["export", "hostile", "-o", "-:csv", "--formulas"],
        ["export", "hostile", "-o", "-:json", "--fields", "title,etag"],
        ["export", "hostile", "--with-meta", *files],
        ["show", "hostile", f"{start}raise"],
        ["show", "hostile", start],
        ["show", "hostile", start, "--json"],
        ["show", "hostile", f"{start}many?FORGED\x1b[2J"],
        ["show", "hostile", f"{start}many?FORGED\x1b[2J", "--json"],
        ["tasks", "hostile", "--limit", "0", "--json", "--items"],
        ["tasks", "hostile", "--url-prefix", "\x1b[2J\nFORGED"],
        ["tasks", "hostile", "--callback", "\x1b[2J\nFORGED"],
        ["ignore", "hostile", "--callback", "\x1b[2J\nFORGED"],
        ["add", "hostile", "http://\x1b[2J/\nFORGED", f"{start}\x1b[2J\nFORGED"],
        ["set", "hostile", "\x1b[2JFORGED=1"],
        ["set", "hostile", "delay=\x1b[2JFORGED"],
        ["pause", "evil"],
        ["pause", "hostile"],
        ["stats", "hostile"],
        ["doctor", "hostile"],
        ["doctor", "hostile", "--json"],
        ["retry-failed", "hostile", "--dry-run"],
        ["retry-failed", "hostile", "--host", "\x1b[2JFORGED"],
        ["ignore", "hostile", "\x1b[2JFORGED"],
        ["tasks", "hostile", "--key", "\x1b[2J\nFORGED"],
        ["reset", "hostile", "--host", "\x1b[2J\nFORGED", "--yes"],
        ["retry-failed", "hostile"],
        ["list"],
        ["stats", "evil"],
        ["stats", "evil", "--json"],
        ["tasks", "evil", "--limit", "0"],
        ["tasks", "evil", "--limit", "0", "--json"],
        ["show", "evil", EVIL],
        ["show", "evil", EVIL, "--json"],
        ["hosts", "evil"],
        ["hosts", "evil", "--json"],
        ["doctor", "evil"],
        ["doctor", "evil", "--json"],
        ["policy", "evil"],
        ["export", "evil", "-o", "-"],
        *bodies,
        *(["fetch", f"{start}{page}", "--headers", "--log-level", "debug"] for page in _PAGES),
        *(
            ["parse", SPIDER, f"{start}{page}", "-c", "follow"]
            for page in ("header", "json", "raise", "reason")
        ),
        ["parse", SPIDER, start],
        ["parse", SPIDER, start, "--json"],
        ["parse", SPIDER, f"{start}stop"],
        *(
            ["copy", name, "--from", ledger, "--to", f"{ledger}.copy"]
            for name in ("hostile", "evil")
        ),
        ["drop", "evil", "--yes"],
    ]


def main(ledger: str, start: str, folder: str) -> None:
    """Run all commands."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as `main` does
    for arguments in commands(ledger, start, folder):
        told = [] if arguments[0] in _WITHOUT_LEDGER else ["--ledger", ledger]
        # Worker processes are started with the same arguments.
        sys.argv = ["crawlcw", *arguments, *told]
        sys.orig_argv = [sys.executable, "-m", *sys.argv]
        code = exit_code(
            lambda: cli.main([*arguments, *told], prog_name="crawlcw", standalone_mode=False)  # noqa: B023  # called at once
        )
        print(f"== {json.dumps(' '.join(arguments))} == {code}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
