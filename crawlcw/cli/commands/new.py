"""`crawlcw new`: write a first spider file."""

import json
from pathlib import Path

import click

from crawlcw.api.spider import is_name
from crawlcw.cli import loading
from crawlcw.errors import FetchError, UsageError
from crawlcw.model import urls

_TEMPLATE = '''\
"""{title}: its pages, and the items from them.

    crawlcw parse {name} {url}
    crawlcw run {name} -o {name}.jsonl
"""

from crawlcw import Settings, Spider


class {title}(Spider):
    name = "{name}"
    start_urls = [{quoted}]
    settings = Settings()  # `crawlcw settings` lists them

    def parse(self, response):
        title = response.css_first("title")
        yield {{"url": response.url, "title": title.text(strip=True) if title else None}}
        yield from response.follow_all("a[href]")
'''


@click.command("new")
@click.argument("name")
@click.argument("url", default="https://example.com/")
def command(*, name: str, url: str) -> None:
    """Write ./spiders/NAME.py, a spider that starts at URL and follows every link of its site."""
    if not is_name(name):
        raise UsageError(
            f"{name!r} is not a spider name: a letter, then up to 59 letters, digits, - and _"
        )
    try:
        address = urls.locate(url).url
    except FetchError as error:
        # The error shows the URL without its password.
        raise UsageError(f"not a URL to fetch: {error.message}") from None
    path = Path(loading.FOLDER) / f"{name.replace('-', '_')}.py"
    title = "".join(word.capitalize() for word in name.replace("-", "_").split("_"))
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            text = _TEMPLATE.format(name=name, title=title, url=address, quoted=json.dumps(address))
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already and was not changed") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    click.echo(f"Wrote {path}. `crawlcw parse {name} {address}` shows its items and requests.")
