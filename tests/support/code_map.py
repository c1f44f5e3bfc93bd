"""The code map of ARCHITECTURE.md, made of what each module says of itself."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "crawlcw"
#: In the order in which a reader comes to them: what they stand on comes first.
ROOMS = (
    "errors",
    "model",
    "api",
    "ledger",
    "ledger.mongo",
    "ledger.sqlite",
    "files",
    "archive",
    "downloader",
    "engine",
    "telemetry",
    "crawl",
    "observing",
    "doctor",
    "ledger_opening",
    "assembly",
    "tracking",
    "server",
    "dashboard",
    "feeds",
    "checking",
    "testing",
    "demo",
    "guide",
    "cli",
    "cli.terminal",
    "cli.processes",
    "cli.commands",
)


def modules() -> dict[str, Path]:
    """Return every module by its name without `crawlcw.`, in the order of the map."""
    found = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    }
    return dict(sorted(found.items(), key=lambda each: (ROOMS.index(_room(each[0])), each[0])))


def _room(module: str) -> str:
    return module if module in ROOMS else module.rpartition(".")[0]


def code_map() -> str:
    """Return the table, a row for each module."""
    rows = [f"| `{module}` | {_idea(path)} |" for module, path in modules().items()]
    return "\n".join(["| module | one idea |", "|---|---|", *rows])


def _idea(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return said.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|").rstrip(".")
