"""Define rules, by which a spider follows links without code.

    class Shop(Spider):
        name = "shop"
        start_urls = ["https://shop.example/"]
        rules = [
            Rule(allow=r"/category/"),
            Rule(allow=r"/item/", callback="parse_item"),
        ]

The first rule that matches a link follows it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from crawlcw.api.links import Extensions, LinkFilter, Patterns
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.scrapy_words import RULE_ARGUMENTS
from crawlcw.errors import SpiderError

#: The callback for the pages of start URLs, and for rules without `callback`.
PARSE = "parse"


class Rule:
    """A group of links that the crawl follows, and the callback for the linked pages.

    - *css*, *allow*, *deny*, *extensions*, *deny_extensions*, *restrict*: see
      `Response.follow_all`. By default a rule excludes links to files that are not pages.
    - *callback*: the name of the spider's method that parses the linked pages. The default callback
      is `parse`, which the spider does not have to define.
    - *follow*: whether the rules also apply to the linked pages. The default is True if the rule
      has no *callback*, else False.
    - *options*: arguments of `Request`.
    """

    def __init__(
        self,
        css: str = "a, area",
        *,
        allow: Patterns = (),
        deny: Patterns = (),
        extensions: Extensions | None = None,
        deny_extensions: Extensions | bool = True,
        restrict: str | None = None,
        callback: str | None = None,
        follow: bool | None = None,
        **options: Any,
    ) -> None:
        if callback is not None and not isinstance(callback, str):
            raise SpiderError(f"Rule(callback={callback!r}) takes the name of a method")
        if not isinstance(css, str):
            kind = type(css).__name__  # type: ignore[unreachable]  # for untyped spiders
            raise SpiderError(
                f"Rule({kind}(...)) takes a CSS selector for links: write allow=, deny= and "
                "restrict= in the rule itself"
            )
        for name in options.keys() & RULE_ARGUMENTS.keys():
            replacement = RULE_ARGUMENTS[name]
            raise SpiderError(f"Rule({name}=...) means nothing here: write {replacement}")
        self.callback = callback or PARSE
        self._css = css
        self._restrict = restrict
        self._follow = callback is None if follow is None else follow
        self._options = options
        try:
            self._links = LinkFilter.of(
                allow=allow, deny=deny, extensions=extensions, deny_extensions=deny_extensions
            )
            Request("http://rule.invalid/", self.callback, **options)
        except (SpiderError, ValueError, TypeError) as error:
            # Name `Rule` instead of `Request` in the message, because the user wrote a rule.
            message = str(error).removeprefix("Request")
            raise SpiderError(
                f"Rule{message}" if message != str(error) else f"Rule: {error}"
            ) from None

    def requests(self, response: Response) -> Iterator[Request]:
        """Yield a request for each link of the page that matches the rule."""
        for request in response.follow_all(
            self._css,
            self.callback,
            allow=self._links.allow,
            deny=self._links.deny,
            extensions=self._links.extensions,
            deny_extensions=self._links.deny_extensions,
            restrict=self._restrict,
            **self._options,
        ):
            request.options = replace(request.options, rules=self._follow)
            yield request


def requests(rules: Iterable[Rule], response: Response) -> Iterator[Request]:
    """Yield the requests of *rules* on a page; the first rule that matches a link wins.

    Rules apply to pages that a rule with `follow` requested. On pages that no rule requested, such
    as start URLs, rules apply if the callback is `parse`.
    """
    request = response.request
    if not (request.callback == PARSE if request.options.rules is None else request.options.rules):
        return
    seen_urls: set[str] = set()
    for rule in rules:
        for link_request in rule.requests(response):
            if link_request.url not in seen_urls:
                seen_urls.add(link_request.url)
                yield link_request


def check(rules: object, owner: type) -> None:
    """Raise `SpiderError` if *rules* are not `Rule`s, or name a callback that *owner* lacks."""
    if not isinstance(rules, Sequence) or not all(isinstance(entry, Rule) for entry in rules):
        raise SpiderError(f"{owner.__name__}.rules must be a list of crawlcw.Rule(...)")
    for rule in rules:
        if not callable(getattr(owner, rule.callback, None)):
            raise SpiderError(f"{owner.__name__}.rules: there is no callback {rule.callback!r}")
