"""Convert pages to Markdown by each installed converter: python markdown_converters.py < PAGES.

PAGES is a JSON list of `[url, html]`. The output is a JSON object with, for each converter, its
texts and its CPU seconds.
"""

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable

Convert = Callable[[str, str], str | None]


def trafilatura() -> Convert:
    """Write the main content, with all that trafilatura can write."""
    import trafilatura as package

    return lambda url, html: package.extract(
        html,
        url=url,
        output_format="markdown",
        include_formatting=True,
        include_links=True,
        include_images=True,
        include_tables=True,
        favor_recall=True,
    )


def html_to_markdown() -> Convert:
    """Write the whole page, without the metadata in front, with all escapes."""
    import html_to_markdown as package

    def convert(url: str, html: str) -> str | None:
        options = package.ConversionOptions(
            base_url=url,
            br_in_tables=True,
            escape_asterisks=True,
            escape_misc=True,
            escape_underscores=True,
            extract_metadata=False,
            sub_symbol="<sub>",
            sup_symbol="<sup>",
        )
        return package.convert(html, options).content

    return convert


def markdownify() -> Convert:
    """Write the whole page, with all escapes."""
    import markdownify as package

    return lambda _, html: package.markdownify(
        html, heading_style="ATX", escape_misc=True, sub_symbol="<sub>", sup_symbol="<sup>"
    )


def crawl4ai() -> Convert:
    """Write the whole page by the default generator, without its list of citations."""
    from crawl4ai.markdown_generation_strategy import DefaultMarkdownGenerator

    generator = DefaultMarkdownGenerator()
    return lambda url, html: (
        generator.generate_markdown(html, base_url=url, citations=False).raw_markdown
    )


def main() -> None:
    """Write the texts and seconds of each converter that is installed."""
    pages = json.load(sys.stdin)
    results = {}
    for make in (trafilatura, html_to_markdown, markdownify, crawl4ai):
        try:
            convert = make()
            version = importlib.metadata.version(make.__name__.replace("_", "-"))
        except ImportError:
            continue
        texts = []
        started = time.process_time()
        for url, html in pages:
            try:
                texts.append(convert(url, html) or "")
            except Exception as error:  # it counts as an empty text
                print(f"{make.__name__}: {url}: {type(error).__name__}", file=sys.stderr)
                texts.append("")
        seconds = time.process_time() - started
        results[f"{make.__name__} {version}"] = {"texts": texts, "seconds": seconds}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
