"""List Scrapy's settings, arguments and `meta` keys with their counterparts in crawlcw.

The errors of `Settings`, `Request` and `Rule`, and `crawlcw check`, suggest the words of
this module.
"""

#: Members of parsel's selectors that lexbor's nodes and lists of nodes do not have.
_OF_SELECTORS = frozenset(
    {"attrib", "css", "extract", "extract_first", "get", "getall", "re", "re_first", "xpath"}
)

#: Settings of Scrapy, and their counterparts in crawlcw.
SETTINGS = {
    "ALLOWED_DOMAINS": "allowed_hosts of the spider",
    "AUTOTHROTTLE_ENABLED": "auto_throttle=",
    "AUTOTHROTTLE_MAX_DELAY": "host_backoff_max=",
    "AUTOTHROTTLE_START_DELAY": "delay=",
    "AUTOTHROTTLE_TARGET_CONCURRENCY": "per_host_concurrency=",
    "BOT_NAME": "nothing, or user_agent=",
    "CLOSESPIDER_ERRORCOUNT": "max_failures=",
    "CLOSESPIDER_ITEMCOUNT": "max_items=",
    "CLOSESPIDER_PAGECOUNT": "max_pages=",
    "CLOSESPIDER_TIMEOUT": "`timeout 1h crawlcw run ...`",
    "CONCURRENT_REQUESTS": "concurrency=",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "per_host_concurrency=",
    "COOKIES_ENABLED": "cookies= (off by default)",
    "DEFAULT_REQUEST_HEADERS": "headers=",
    "DEPTH_LIMIT": "max_depth= (0: only start URLs; none: no limit)",
    "DOWNLOADER_MIDDLEWARES": "before_request() and after_response() of the spider",
    "DOWNLOAD_DELAY": "delay=",
    "DOWNLOAD_HANDLERS": "downloader() of the spider",
    "DOWNLOAD_MAXSIZE": "max_body=",
    "DOWNLOAD_TIMEOUT": "timeout=",
    "DOWNLOAD_VERIFY_CERTIFICATES": "insecure= (certificates are verified)",
    "EXTENSIONS": "opened() and closed() of the spider",
    "FEEDS": "`crawlcw run ... -o FILE`",
    "FEED_EXPORT_FIELDS": "`crawlcw export --fields`",
    "FEED_FORMAT": "`crawlcw run ... -o FILE`",
    "FEED_URI": "`crawlcw run ... -o FILE`",
    "FILES_STORE": "Request(save_to=)",
    "HTTPCACHE_ENABLED": 'cache="dev"',
    "HTTPCACHE_EXPIRATION_SECS": "cache_expires=",
    "HTTPERROR_ALLOWED_CODES": "accept_statuses=",
    "HTTPERROR_ALLOW_ALL": 'accept_statuses="300-599"',
    "HTTPPROXY_ENABLED": "proxy_env=",
    "IMAGES_STORE": "Request(save_to=)",
    "ITEM_PIPELINES": "item() of the spider",
    "JOBDIR": "nothing: the ledger is always there (`--ledger`)",
    "LOG_FILE": "`--log-file`",
    "LOG_LEVEL": "`--log-level`",
    "MEMUSAGE_LIMIT_MB": "memory_budget=",
    "REDIRECT_ENABLED": "accept_statuses=[301, 302, 303, 307, 308]",
    "REDIRECT_MAX_TIMES": "max_redirects=",
    "REFERER_ENABLED": "referer= (off by default)",
    "REFERRER_POLICY": 'referer="policy"',
    "RETRY_ENABLED": "max_retry=1",
    "RETRY_HTTP_CODES": "retry_statuses=",
    "RETRY_TIMES": "max_retry= (attempts: one more than the retries)",
    "ROBOTSTXT_OBEY": "obey_robots= (on by default)",
    "SPIDER_MIDDLEWARES": "before_request() and after_response() of the spider",
    "SPIDER_MODULES": "nothing: spiders lie in ./spiders",
    "URLLENGTH_LIMIT": "max_url_length=",
    "USER_AGENT": "user_agent=",
}

#: Settings of Scrapy and their values in crawlcw. A spider can omit a setting that has this value.
DEFAULTS = {
    "HTTPCACHE_ENABLED": False,
    "HTTPERROR_ALLOW_ALL": False,
    "REDIRECT_ENABLED": True,
    "RETRY_ENABLED": True,
}

_NOT_FOLLOWED = "accept_statuses=[301, 302, 303, 307, 308] to have redirects as pages"

#: Arguments of requests in Scrapy, Crawlee, requests and httpx, and their counterparts in crawlcw.
REQUEST_ARGUMENTS = {
    "allow_redirects": _NOT_FOLLOWED,
    "auth": "settings = Settings(auth=...) on the spider",
    "cb_kwargs": "context=",
    "dont_redirect": _NOT_FOLLOWED,
    "encoding": "body= as bytes",
    "flags": "context=",
    "follow_redirects": _NOT_FOLLOWED,
    "form_data": "data=",
    "formdata": "data=",
    "label": "callback=",
    "max_retries": "max_retry=",
    "meta": "context=",
    "no_retry": "max_retry=1",
    "params": "the query as a part of url=",
    "payload": "body=, json= or data=",
    "unique_key": "dont_filter=True",
    "user_data": "context=",
    "verify": "settings = Settings(insecure=True) on the spider",
}

#: Arguments of Scrapy's `Rule` and `LinkExtractor`, and their counterparts in crawlcw's `Rule`.
RULE_ARGUMENTS = {
    "attrs": "css= with a selector of the links",
    "canonicalize": "nothing: addresses are compared in their canonical form",
    "cb_kwargs": "context=",
    "link_extractor": "allow=, deny=, restrict= of the rule itself",
    "process_request": "before_request(self, request) of the spider",
    "process_value": "a callback that yields response.follow(address)",
    "restrict_css": "restrict=",
    "restrict_xpaths": "restrict_xpath=",
    "strip": "nothing: addresses are stripped",
    "tags": "css= with a selector of the links",
    "unique": "nothing: each address of a page is followed once",
}

#: Keys that Scrapy reads from or writes into `meta`, and their counterparts in crawlcw.
META_KEYS = {
    "bindaddress": "nothing",
    "cookiejar": 'Request(session="name")',
    "depth": "nothing: each task has its depth",
    "dont_cache": "nothing",
    "dont_merge_cookies": "Request(cookies=)",
    "dont_obey_robotstxt": "Settings(obey_robots=False)",
    "dont_redirect": f"Request({_NOT_FOLLOWED})",
    "dont_retry": "Request(max_retry=1)",
    "download_latency": "response.elapsed",
    "download_maxsize": "Request(max_body=)",
    "download_slot": "limits of the spider",
    "download_timeout": "Request(timeout=)",
    "handle_httpstatus_all": 'Request(accept_statuses="300-599")',
    "handle_httpstatus_list": "Request(accept_statuses=)",
    "max_retry_times": "Request(max_retry=)",
    "playwright": "Request(browser=True)",
    "playwright_page": "response.page",
    "proxy": "Request(proxy=)",
    "redirect_times": "nothing",
    "redirect_urls": "response.request.url, the requested address",
    "retry_times": "nothing: the ledger counts attempts",
    "selenium": "Request(browser=True)",
    "splash": "Request(browser=True)",
}


def selector_hint(error: BaseException) -> str:
    """Return a hint for a callback that used lexbor's nodes like parsel's selectors, else `""`."""
    if type(error).__name__ == "SelectolaxError":  # from a node
        return (
            " (the nodes of response.css() do not support ::text and ::attr(): write .text() or "
            ".attributes['...'], or use response.selector.css(). `crawlcw check` lists Scrapy's "
            "other names)"
        )
    if not isinstance(error, AttributeError) or error.name not in _OF_SELECTORS:
        return ""
    if type(error.obj).__name__ not in ("LexborNode", "list"):
        return ""
    return (
        f" (response.css() returns lexbor's nodes; only parsel's selectors have .{error.name}: use "
        "response.selector.css(). `crawlcw check` lists Scrapy's other names)"
    )
