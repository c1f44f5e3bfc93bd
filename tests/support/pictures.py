"""Pictures of the site's gallery: screens of real commands, and the real dashboard.

    python -m tests.support.pictures

takes those of the terminal, in seconds. Those of the dashboard are screenshots, taken by hand.
They are kept in `examples/pictures/`, so that the site is built without running anything.
`tests/test_site.py` compares the texts of the terminal's pictures with the commands' output.
"""

import io
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.support import pages, terminals
from tests.support.examples import QUICK

FOLDER = pages.ROOT / "examples" / "pictures"
_COLUMNS, _LINES = 100, 50
#: Width of a character in a picture, by rich.
_CHARACTER_WIDTH = 12.2
#: Background, text, and the eight colours: light enough for dim text as well.
_THEME = TerminalTheme(
    (24, 26, 32),
    (232, 234, 237),
    [
        (24, 26, 32),
        (242, 110, 110),
        (126, 200, 127),
        (240, 200, 100),
        (120, 170, 250),
        (214, 140, 230),
        (100, 205, 215),
        (232, 234, 237),
    ],
)
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" role="img" \
aria-labelledby="title text"><title id="title">{title}</title>
<desc id="text">{text}</desc>
<style>.{{unique_id}}-matrix {{{{ font: {{char_height}}px ui-monospace, Menlo, Consolas, \
"DejaVu Sans Mono", monospace; line-height: {{line_height}}px }}}}
{{styles}}</style>
<defs>{{lines}}</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})">{{backgrounds}}
<g class="{{unique_id}}-matrix">{{matrix}}</g></g></svg>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of the gallery; with two files, one for light and one for dark pages."""

    heading: str
    files: tuple[str, ...]
    alt: str
    text: str  #: of the page, above the picture


PICTURES = (
    Picture(
        heading="A first crawl",
        files=("demo.svg",),
        alt="A terminal in which crawlcw demo prints tables of tasks, pages and failures.",
        text="`crawlcw demo` crawls a small bookshop on this machine in seconds.",
    ),
    Picture(
        heading="Killed and resumed",
        files=("resume.svg",),
        alt="A terminal: a crawl is killed at a part of its pages, and the next run ends it.",
        text="A killed crawl goes on where it was: the file has all 240 books, each of them once.",
    ),
    Picture(
        heading="Failures",
        files=("failures.svg",),
        alt="A terminal in which stats, tasks and retry-failed show why pages were given up.",
        text="Every page that was given up stays in the ledger with its reason.",
    ),
    Picture(
        heading="The dashboard",
        files=("overview-light.webp", "overview-dark.webp"),
        alt="The dashboard's overview: pages a second, counts by status, charts, the worker.",
        text="`crawlcw dashboard` shows a crawl while it runs. "
        "[The dashboard](../crawlcw/guide/dashboard.md) describes its views.",
    ),
    Picture(
        heading="One task",
        files=("task-light.webp", "task-dark.webp"),
        alt="The dashboard's page of one task: its status, its failed attempt, its last answer.",
        text="Each task has a page with its attempts, its response, its items, and the pages "
        "that link to it.",
    ),
)


# The terminal


def screens(folder: Path) -> dict[str, str]:
    """Run the commands of the terminal's pictures in an empty folder; return each screen."""
    shown = {"demo": _session(folder, "crawlcw demo")}
    ledger = "CRAWLCW_LEDGER=sqlite:///.crawlcw/demo.db"
    shown["failures"] = f"$ export {ledger}\n" + _session(
        folder,
        "crawlcw stats bookshop",
        "crawlcw tasks bookshop --status ignored",
        "crawlcw retry-failed bookshop --dry-run",
        environment=dict([ledger.split("=", 1)]),
    )
    with _bookshop(folder):
        run = "crawlcw run books -s delay=50ms --log-level warning"
        killed = _on_terminal(run, folder, kill_at=r"finished ([3-9]\d|\d{3})\b")
        rest = _session(
            folder, "crawlcw run books --quiet -o books.csv", "wc -l books.csv",
            "crawlcw stats books",
        )  # fmt: skip
    shown["resume"] = f"$ {run}\n{killed}\nKilled\n{rest}"
    return shown


@contextmanager
def _bookshop(folder: Path) -> Iterator[None]:
    """Keep the bookshop open, with the tutorial's spider for it."""
    command = [sys.executable, "-m", "crawlcw", "demo", "--serve", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as shop:
        try:
            assert shop.stdout is not None
            address = re.findall(r"http://\S+", shop.stdout.readline())[0]
            spider = pages.block(pages.guide("tutorial"), "python", "class Books")
            (folder / "spiders").mkdir()
            text = spider.replace("http://127.0.0.1:8000/", address)
            (folder / "spiders" / "books.py").write_text(text)
            yield
        finally:
            shop.send_signal(signal.SIGINT)


def _session(folder: Path, *commands: str, environment: dict[str, str] | None = None) -> str:
    return "".join(
        f"$ {command}\n{_on_terminal(command, folder, environment=environment)}"
        for command in commands
    )


def _on_terminal(
    command: str,
    folder: Path,
    *,
    kill_at: str | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """Return the screen after a command on a terminal, or after its kill at a text."""
    arguments = command.split()
    if arguments[0] == "crawlcw":
        arguments = [sys.executable, "-m", *arguments]
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "HOME": str(folder), **QUICK}
    process, terminal = terminals.started(
        arguments, environ | (environment or {}), folder=folder, size=(_LINES, _COLUMNS)
    )
    written = b""
    for part in terminals.chunks(terminal):
        written += part
        if kill_at and process.poll() is None and re.search(kill_at, _screen(written)):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.returncode == (-signal.SIGKILL if kill_at else 0), written.decode()
    return _screen(written)


def _screen(written: bytes) -> str:
    """Return the lines that are left, with their colours: rich erases lines, then writes anew."""
    lines = [""]
    text = re.sub(r"\x1b\[\?25[hl]", "", written.decode(errors="replace"))
    for part in re.split(r"(\x1b\[1A|\x1b\[2K|\r?\n|\r)", text):
        match part:
            case "\x1b[1A":
                lines.pop()
            case "\x1b[2K":
                lines[-1] = ""
            case "\n" | "\r\n":
                lines.append("")
            case "\r":
                pass
            case _:
                lines[-1] += part
    return "\n".join(lines)


def drawn(screen: str, *, title: str) -> str:
    """Return a screen as SVG: a dark window, on light and on dark pages."""
    text = Text.from_ansi(screen.rstrip())
    text.highlight_regex(r"(?m)^\$ .*$", "bold green")
    console = Console(
        record=True,
        width=_COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        legacy_windows=False,
        color_system="truecolor",
    )
    for line in text.split():
        # A terminal breaks a line at its edge, not between words.
        for part in line.divide(range(_COLUMNS, len(line), _COLUMNS)):
            console.print(part, no_wrap=True, highlight=False, markup=False)
    console.print()
    # rich fills the result in once more, so braces are doubled.
    code = _SVG.format(title=_unformatted(escape(title)), text=_unformatted(escape(text.plain)))
    svg = console.export_svg(title="", theme=_THEME, code_format=code, unique_id="t")
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


def _unformatted(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def texts(svg: str) -> str:
    """Return the lines of text that a picture shows."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        spans = lines.setdefault(float(text.attrib["y"]), [])
        spans.append((float(text.attrib["x"]), text.text or ""))
    return "\n".join(_line(spans) for _, spans in sorted(lines.items()))


def _line(spans: list[tuple[float, str]]) -> str:
    """Return the text of one line; the picture has no spaces between two colours."""
    line = ""
    for x, text in sorted(spans):
        line = line.ljust(round(x / _CHARACTER_WIDTH)) + text
    return line


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        titles = {picture.files[0]: picture.alt for picture in PICTURES}
        for name, screen in screens(Path(folder)).items():
            file = f"{name}.svg"
            (FOLDER / file).write_text(drawn(screen, title=titles[file]), encoding="utf-8")


if __name__ == "__main__":
    main()
