"""Quality and speed of Markdown, beside other converters.

    python -m tests.benchmarks.markdown [--peers-python VENV/bin/python ...] [--pages FOLDER]

The first table has the small pages of tests/content/pages: whether a converter's Markdown means the
same as a right answer, and how alike the two are (`tests.content.shapes.score`). The second table
has the CPU time for the pages of a folder, *.html or *.html.gz, including the parsing of HTML; each
converter writes the whole page, except trafilatura, which also looks for the main content.

The peers are trafilatura, html-to-markdown, markdownify and Crawl4AI, as far as the given Pythons
have them: `pip install trafilatura html-to-markdown markdownify`, and `pip install crawl4ai` in an
environment of its own.
"""

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean

from crawlcw import Request, Response
from crawlcw.errors import ParseRefusedError
from tests.content.shapes import URL, framed, score, shapes

_PEERS = Path(__file__).parent / "peers" / "markdown_converters.py"
Pages = list[tuple[str, str]]
Result = tuple[list[str], float]


def by_crawlcw(pages: Pages) -> dict[str, Result]:
    """Return the Markdown of *pages* by crawlcw, and its CPU seconds."""
    texts = []
    started = time.process_time()
    for url, html in pages:
        response = Response(url, request=Request(url), body=html.encode())
        try:
            texts.append(response.markdown(main=False))
        except ParseRefusedError as refusal:  # a crawl would parse the page in a process
            print(f"crawlcw refuses a page: {refusal.message}")
            texts.append("")
    return {"crawlcw": (texts, time.process_time() - started)}


def by_peers(python: str, pages: Pages) -> dict[str, Result]:
    """Return the Markdown of *pages* by each converter that *python* has."""
    output = subprocess.run(
        [python, str(_PEERS)], input=json.dumps(pages), capture_output=True, text=True, check=False
    )
    if output.returncode:
        sys.exit(output.stderr)
    return {
        name: (result["texts"], result["seconds"])
        for name, result in json.loads(output.stdout[output.stdout.index('{"') :]).items()
    }


def results_of(pages: Pages, pythons: list[str]) -> dict[str, Result]:
    results = by_crawlcw(pages)
    for python in pythons:
        results |= by_peers(python, pages)
    return results


def compare_quality(pythons: list[str], *, with_names: bool) -> None:
    chosen = shapes()
    results = results_of([(URL, framed(shape.html)) for shape in chosen], pythons)
    print(f"{'converter':28} {'right':>5} of {len(chosen)}  score  by file")
    for name, (texts, _) in results.items():
        scores = [score(text, shape) for text, shape in zip(texts, chosen, strict=True)]
        by_file: dict[str, list[float]] = defaultdict(list)
        for shape, value in zip(chosen, scores, strict=True):
            by_file[shape.name.partition(":")[0]].append(value)
        parts = "  ".join(
            f"{file} {sum(value == 1 for value in values)}/{len(values)}"
            for file, values in by_file.items()
        )
        right = sum(value == 1 for value in scores)
        print(f"{name:28} {right:5}       {mean(scores):6.3f}  {parts}")
        if with_names:
            for shape, value in zip(chosen, scores, strict=True):
                if value < 1:
                    print(f"    {value:.2f} {shape.name}")


def compare_speed(pythons: list[str], folder: Path) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith((".html", ".html.gz")))
    pages = [(URL, _text_of(path)) for path in paths]
    size = sum(len(html.encode()) for _, html in pages)
    print(f"\n{len(pages)} pages, {size / len(pages) / 1000:.0f} KB in the mean")
    for name, (texts, seconds) in results_of(pages, pythons).items():
        print(
            f"{name:28} {1000 * seconds / len(pages):7.1f} ms a page  {size / seconds / 1e6:6.1f} "
            f"MB/s  {sum(map(len, texts)) / len(pages) / 1000:6.1f} KB of Markdown a page"
        )


def _text_of(path: Path) -> str:
    body = path.read_bytes()
    body = gzip.decompress(body) if path.suffix == ".gz" else body
    return body.decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers-python", metavar="PATH", action="append", default=[])
    parser.add_argument("--pages", metavar="FOLDER", type=Path, help="pages to measure the speed")
    parser.add_argument("--names", action="store_true", help="list the pages that are not right")
    options = parser.parse_args()
    compare_quality(options.peers_python, with_names=options.names)
    if options.pages is not None:
        compare_speed(options.peers_python, options.pages)


if __name__ == "__main__":
    main()
