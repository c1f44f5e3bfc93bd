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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Any

from crawlcw.api.links import Domains, Extensions, LinkFilter, Patterns, compiled_patterns
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.scrapy_words import RULE_ARGUMENTS
from crawlcw.errors import SpiderError

ProcessLinks = Callable[[list[Request]], Iterable[Request]]

#: The callback for the pages of start URLs, and for rules without `callback`.
PARSE = "parse"


class Rule:
    """A group of links that the crawl follows, and the callback for the linked pages.

    - *css*, *allow*, *deny*, *allow_domains*, *deny_domains*, *extensions*, *deny_extensions*,
      *restrict*, *restrict_xpath*, *restrict_text*: see `Response.follow_all`. By default a rule
      excludes links to files that are not pages.
    - *process_links*: a function, or the name of a method of the spider. It gets the list of the
      page's requests that match the rule, at most `max_links_per_page`, and returns the requests to
      follow. It may change them, leave some out and add others.
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
        allow_domains: Domains = (),
        deny_domains: Domains = (),
        extensions: Extensions | None = None,
        deny_extensions: Extensions | bool = True,
        restrict: str | None = None,
        restrict_xpath: str | None = None,
        restrict_text: Patterns = (),
        process_links: ProcessLinks | str | None = None,
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
        if restrict is not None and restrict_xpath is not None:
            raise SpiderError("Rule takes restrict= or restrict_xpath=, not both")
        if not (process_links is None or isinstance(process_links, str) or callable(process_links)):
            raise SpiderError(
                f"Rule(process_links={process_links!r}) takes a function or the name of a method"
            )
        self.callback = callback or PARSE
        self.process_links = process_links
        self._css = css
        self._follow = callback is None if follow is None else follow
        self._options = options
        try:
            links = LinkFilter.of(
                allow=allow,
                deny=deny,
                allow_domains=allow_domains,
                deny_domains=deny_domains,
                extensions=extensions,
                deny_extensions=deny_extensions,
            )
            self._filters: dict[str, Any] = {
                field.name: getattr(links, field.name) for field in fields(links)
            }
            self._filters |= {
                "restrict": restrict,
                "restrict_xpath": restrict_xpath,
                "restrict_text": compiled_patterns("restrict_text", restrict_text),
            }
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
            self._css, self.callback, **self._filters, **self._options
        ):
            request.options = replace(request.options, rules=self._follow)
            yield request


def requests(
    rules: Iterable[Rule], response: Response, *, owner: object, max_links: int
) -> Iterator[Request]:
    """Yield the requests of *rules* on a page; the first rule that matches a link wins.

    *owner* is the spider, which has the methods that `process_links` names. A `process_links` gets
    at most *max_links* requests.

    Rules apply to pages that a rule with `follow` requested. On pages that no rule requested, such
    as start URLs, rules apply if the callback is `parse`.
    """
    request = response.request
    if not (request.callback == PARSE if request.options.rules is None else request.options.rules):
        return
    seen_urls: set[str] = set()
    for rule in rules:
        link_requests = rule.requests(response)
        rule_requests: Iterable[Request] = link_requests
        if rule.process_links is not None:
            first_requests = list(islice(link_requests, max_links))
            if len(first_requests) == max_links:
                response.following.is_over = True
                next(link_requests, None)  # counts the remaining links
            rule_requests = _processed(rule.process_links, first_requests, owner)
        for link_request in rule_requests:
            if link_request.url not in seen_urls:
                seen_urls.add(link_request.url)
                yield link_request


def _processed(
    process_links: ProcessLinks | str, requests: list[Request], owner: object
) -> list[Request]:
    """Return the requests that *process_links* returns; raises `SpiderError` for others."""
    function = getattr(owner, process_links) if isinstance(process_links, str) else process_links
    result: Any = function(requests)
    if isinstance(result, Iterable):
        result = list(result)
    if not isinstance(result, list) or not all(isinstance(entry, Request) for entry in result):
        name = getattr(function, "__name__", "process_links")
        raise SpiderError(
            f"{name}() of a Rule returned {type(result).__name__}: return a list of requests"
        )
    return result


def check(rules: object, owner: type) -> None:
    """Raise `SpiderError` if *rules* are not `Rule`s, or name a callback that *owner* lacks."""
    if not isinstance(rules, Sequence) or not all(isinstance(entry, Rule) for entry in rules):
        raise SpiderError(f"{owner.__name__}.rules must be a list of crawlcw.Rule(...)")
    for rule in rules:
        if not callable(getattr(owner, rule.callback, None)):
            raise SpiderError(f"{owner.__name__}.rules: there is no callback {rule.callback!r}")
        name = rule.process_links
        if isinstance(name, str) and not callable(getattr(owner, name, None)):
            raise SpiderError(f"{owner.__name__}.rules: there is no method {name!r}")
