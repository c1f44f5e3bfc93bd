"""CPU time of articles and of main content, beside trafilatura and resiliparse.

    pip install trafilatura lxml_html_clean resiliparse
    python -m tests.benchmarks.content [--pages FOLDER] [--rounds 3]

The pages are *.html and *.html.gz of a folder, such as a manual of Debian, or generated pages. Each
time includes the parsing of HTML. If the folder has a `truth.jsonl` with the fields `id` (a page is
ID.html or ID.html.gz) and `main_content`, as the Web Content Extraction Benchmark (WCXB) has it,
the mean F1 of words is printed as well. A library that is missing is left out.
"""

import argparse
import gzip
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import mean

from selectolax.lexbor import LexborHTMLParser

from crawlcw import Request, Response
from crawlcw.api.document import Trees

_URL = "https://site.example/page"
_WORD = re.compile(r"\w+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_PARAGRAPH = "<p>The crawler asks the server for one page at a time, and <a href=/x>waits</a>.</p>"
_MENU = "<nav><ul>" + "".join(f"<li><a href=/{n}>Topic {n}</a>" for n in range(60)) + "</ul></nav>"


def response_of(html: str) -> Response:
    """Return the page, parsed as a crawl parses it, whatever its shape is."""
    body = html.encode()
    response = Response(_URL, request=Request(_URL), body=body)
    response.trees = Trees(tree=LexborHTMLParser(body))
    return response


def ways() -> dict[str, Callable[[str], str]]:
    """Return what makes the text of a page, by name."""
    functions: dict[str, Callable[[str], str]] = {
        "article().text": lambda html: response_of(html).article().text,
        "markdown()": lambda html: response_of(html).markdown(),
        "markdown(main=False)": lambda html: response_of(html).markdown(main=False),
    }
    try:
        trafilatura = import_module("trafilatura")
        functions["trafilatura"] = lambda html: trafilatura.extract(html) or ""
    except ImportError:
        print("trafilatura is missing")
    try:
        html2text = import_module("resiliparse.extract.html2text")
        functions["resiliparse"] = lambda html: html2text.extract_plain_text(
            html, main_content=True
        )
    except ImportError:
        print("resiliparse is missing")
    return functions


def generated() -> dict[str, str]:
    """Return pages of 5 to 500 paragraphs between two menus."""
    return {
        str(count): f"<body>{_MENU}<h1>Page</h1>{_PARAGRAPH * count}{_MENU}</body>"
        for count in (5, 20, 50, 100, 200, 500)
    }


def read(folder: Path) -> dict[str, str]:
    """Return the pages of a folder, by the names of their files without `.html`."""
    pages = {}
    for path in sorted(folder.rglob("*.html*")):
        body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        pages[path.name.partition(".html")[0]] = body.decode(errors="replace")
    return pages


def f1(text: str, truth: str) -> float:
    """Return the F1 of the words of *text*, without the addresses of Markdown."""
    words, right_words = (
        Counter(_WORD.findall(side.lower())) for side in (_LINK.sub(r"\1", text), truth)
    )
    return 2 * (words & right_words).total() / ((words + right_words).total() or 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", metavar="FOLDER", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pages = generated() if options.pages is None else read(options.pages)
    truths: dict[str, str] = {}
    if options.pages is not None and (path := options.pages / "truth.jsonl").exists():
        rows = map(json.loads, path.open())
        truths = {row["id"]: row["main_content"] for row in rows}
    size = sum(map(len, pages.values())) / len(pages) / 1000
    print(f"{len(pages)} pages, {size:.0f} KB in the mean")
    for name, way in ways().items():
        best = float("inf")
        for _ in range(options.rounds):
            started = time.process_time()
            texts = {page_id: way(html) for page_id, html in pages.items()}
            best = min(best, time.process_time() - started)
        scores = [f1(texts[page_id], truth) for page_id, truth in truths.items()]
        quality = f"  F1 {mean(scores):.3f}" if scores else ""
        print(f"{name:22} {1000 * best / len(pages):7.1f} ms a page{quality}")


if __name__ == "__main__":
    main()
