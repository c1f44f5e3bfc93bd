"""Find Scrapy's imports, class members and settings in a source file."""

import ast

import crawlcw
from crawlcw.api.scrapy_words import DEFAULTS, RULE_ARGUMENTS, SETTINGS
from crawlcw.checking.source import FOREIGN_MODULES, Class, Source, defined, path_of

_HOOKS = "layers#Hooks"
_ITEMS = "items"
_MEMBERS = "spiders#Attributes and methods"
_RULES = "requests#Rules"
_START = "spiders#Start requests"
_SCRAPY = "scrapy"
_STATE = "state"

#: crawlcw's replacement and the manual's section for each name of Scrapy and its plugins.
_NAMES = {
    **dict.fromkeys(("CrawlerProcess", "CrawlerRunner"), ("run_spider(...)", "testing")),
    **dict.fromkeys(("FilesPipeline", "ImagesPipeline"), ("Request(save_to=)", "files")),
    **dict.fromkeys(
        ("Compose", "Identity", "Join", "MapCompose", "SelectJmes", "TakeFirst"),
        ("the same class of itemloaders.processors", _ITEMS),
    ),
    **dict.fromkeys(
        ("HtmlResponse", "TextResponse", "XmlResponse"), ("crawlcw.Response", "responses")
    ),
    **dict.fromkeys(
        ("LinkExtractor", "LxmlLinkExtractor"),
        ("Rule(allow=, deny=, restrict=) or response.follow_all(...)", _RULES),
    ),
    "CloseSpider": ('StopCrawl("why")', "spiders#Callbacks"),
    "CrawlSpider": ("Spider with rules = [...]", _RULES),
    "DropItem": ("crawlcw.DropItem", _ITEMS),
    "Field": ("a field of a dataclass, or a key of a dict", _ITEMS),
    "FormRequest": ("response.form(...).submit(...), or Request(data=)", "responses#Forms"),
    "IgnoreRequest": ("FetchError, raised in a hook", _HOOKS),
    "Item": ("a dict or a dataclass", _ITEMS),
    "ItemLoader": ("itemloaders.ItemLoader(item={}, selector=response.selector)", _ITEMS),
    "JsonRequest": ("Request(json=)", "requests"),
    "Request": ("crawlcw.Request", "requests"),
    "Response": ("crawlcw.Response", "responses"),
    "Rule": ("crawlcw.Rule", _RULES),
    "Selector": ("parsel.Selector, or response.selector", "responses"),
    "SitemapSpider": ("crawlcw.SitemapSpider", "sitemaps"),
    "Spider": ("crawlcw.Spider", "spiders"),
    "get_project_settings": ("[tool.crawlcw] in pyproject.toml", "settings"),
    "inspect_response": ("`crawlcw shell URL --spider NAME`", "commands#shell"),
    "signals": ("opened(), closed(), item(), on_error() of the spider", _MEMBERS),
}
#: crawlcw's replacement for each module; used for an imported name that is not in `_NAMES`.
_MODULES = {
    "itemadapter": ("the item itself: a dict or a dataclass", _ITEMS),
    "pydispatch": _NAMES["signals"],
    "scrapy": ("from crawlcw import Request, Spider", _SCRAPY),
    "scrapy.downloadermiddlewares": ("before_request() and after_response()", _HOOKS),
    "scrapy.loader": _NAMES["ItemLoader"],
    "scrapy.pipelines": ("item(), or Request(save_to=)", _ITEMS),
    "scrapy.settings": ("Settings", "settings"),
    "scrapy.spidermiddlewares": ("item() and the callbacks of the spider", _MEMBERS),
    "scrapy.utils": ("nothing: crawlcw has no such function", _SCRAPY),
    "scrapy_playwright": ("Request(browser=True)", "browser"),
    "scrapy_redis": ("`--ledger mongodb://...`, on any number of machines", "deploying"),
    "scrapy_rotating_proxies": ("Settings(proxies=[...])", "proxies"),
    "scrapy_selenium": ("Request(browser=True)", "browser"),
    "scrapy_splash": ("Request(browser=True)", "browser"),
    "twisted": ("async def and asyncio: there are no deferreds", "spiders#Callbacks"),
}
#: Names that Scrapy and crawlcw share; a user needs to change only the import.
_SHARED_NAMES = frozenset({"DropItem", "Request", "Response", "Rule", "SitemapSpider", "Spider"})

#: crawlcw's replacement for each member of a Scrapy spider.
_OF_SPIDERS = {
    "allowed_domains": ("allowed_hosts", "spiders"),
    "custom_settings": ("settings = Settings(...)", "settings"),
    "download_delay": ("settings = Settings(delay=...)", "settings"),
    "download_timeout": ("settings = Settings(timeout=...)", "settings"),
    "from_crawler": ("async def opened(self)", _MEMBERS),
    "handle_httpstatus_list": ("settings = Settings(accept_statuses=[...])", "settings"),
    "http_pass": ("settings = Settings(auth=(user, password))", "settings"),
    "http_user": ("settings = Settings(auth=(user, password))", "settings"),
    "parse_start_url": ("parse(self, response)", _RULES),
    "process_request": ("before_request(self, request)", _HOOKS),
    "process_response": ("after_response(self, response)", _HOOKS),
    "spider_closed": ("async def closed(self, report)", _MEMBERS),
    "spider_idle": ("a start() that waits", _START),
    "spider_opened": ("async def opened(self)", _MEMBERS),
    "start_requests": ("async def start(self)", _START),
}
#: Methods of Scrapy's pipelines and middleware, with their parameters and crawlcw's replacement.
_OF_PARTS = {
    "close_spider": ({"spider"}, ("closed(self, report) of the spider", _MEMBERS)),
    "from_crawler": ({"crawler"}, ("opened(self) of the spider", _MEMBERS)),
    "open_spider": ({"spider"}, ("opened(self) of the spider", _MEMBERS)),
    "process_exception": (
        {"request", "exception"},
        ("on_error(self, request, error) of the spider", "spiders#Failures"),
    ),
    "process_item": ({"item"}, ("item(self, item, response) of the spider", _ITEMS)),
    "process_request": ({"request", "spider"}, ("before_request(self, request)", _HOOKS)),
    "process_response": ({"request", "response"}, ("after_response(self, response)", _HOOKS)),
    "process_spider_output": ({"response", "result"}, ("item() of the spider", _ITEMS)),
}
#: Attributes that Scrapy sets on a spider, with crawlcw's replacement.
_OF_SELF = {
    "crawler.engine": ('raise StopCrawl("why") to end the crawl', "spiders#Callbacks"),
    "crawler.settings": ("self.settings", "settings"),
    "crawler.signals": _NAMES["signals"],
    "crawler.stats": ("self.state.add(key, n)", _STATE),
    "crawler": ("nothing: a spider has its settings, logger and hooks", _MEMBERS),
    "log": ("self.logger.info", "spiders"),
}
_RULED = ("Rule", "LinkExtractor")
_SETTINGS_METHODS = frozenset(
    {"get", "getbool", "getdict", "getfloat", "getint", "getlist", "getwithbase"}
)


class Names:
    """Finds Scrapy's names in one source file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._report = source.report
        self._of_scrapy = source.needs_scrapy
        self._reported: set[ast.expr] = set()  #: parts of reported expressions

    def check(self) -> None:
        """Check the whole file."""
        self._imports()
        for class_ in self._source.classes:
            (self._spider if class_.is_spider else self._part)(class_)
        for node in ast.walk(self._source.tree):
            match node:
                case ast.Call():
                    self._call(node)
                case ast.Attribute() | ast.Name():
                    self._use(node)
        self._settings_file()

    def _imports(self) -> None:
        for imported in self._source.imports:
            package = imported.full_name.partition(".")[0]
            if imported.is_optional:
                continue
            if package in FOREIGN_MODULES:
                replacement, guide = _counterpart(imported.full_name)
                code = f"import of {imported.full_name}"
                stops = not imported.in_function
                self._report(imported.line, code, replacement, guide, stops=stops)
            elif package == "crawlcw" and imported.full_name.count(".") == 1:
                name = imported.full_name.partition(".")[2]
                if name in _NAMES and name not in crawlcw.__all__:
                    replacement, guide = _NAMES[name]
                    self._report(
                        imported.line, f"crawlcw has no {name}", replacement, guide, stops=True
                    )

    def _use(self, node: ast.Attribute | ast.Name) -> None:
        """Report *node* if it uses a name of Scrapy, or an attribute that Scrapy sets."""
        if not isinstance(node.ctx, ast.Load):
            return
        full_name = self._source.full_name(node)
        name = full_name.rpartition(".")[2]
        if full_name.partition(".")[0] in FOREIGN_MODULES:
            if name in _NAMES and name not in _SHARED_NAMES:
                self._report(node.lineno, ast.unparse(node), *_NAMES[name])
            return
        if not isinstance(node, ast.Attribute) or node in self._reported:
            return
        text = path_of(node)
        if text.startswith("self.") and (counterpart := _OF_SELF.get(text.removeprefix("self."))):
            self._reported.add(node.value)
            is_scrapys = text.startswith("self.crawler") or self._of_scrapy
            if is_scrapys and not any(class_.defines("crawler") for class_ in self._source.classes):
                self._report(node.lineno, text, *counterpart)
        elif self._of_scrapy and text == "self.state":
            code = "self.state, which the ledger records with each page"
            self._report(node.lineno, code, "self.state.add(key, n) for counters", _STATE)
        elif text in ("failure.value", "failure.request", "failure.type", "failure.check"):
            replacement = {"failure.request": "request"}.get(text, "error.reason, error.response")
            self._report(node.lineno, text, replacement, "spiders#Failures")

    def _call(self, call: ast.Call) -> None:
        full_name = self._source.full_name(call.func)
        if full_name.startswith("scrapy.") and full_name.endswith(_RULED):
            for keyword in call.keywords:
                if keyword.arg in RULE_ARGUMENTS:
                    code = f"{ast.unparse(call.func)}({keyword.arg}=...)"
                    self._report(keyword.value.lineno, code, RULE_ARGUMENTS[keyword.arg], _RULES)
        if not isinstance(call.func, ast.Attribute):
            return
        owner, name = ast.unparse(call.func.value), call.func.attr
        if owner == "self.settings" and name in _SETTINGS_METHODS:
            self._report(
                call.lineno,
                f"self.settings.{name}(...)",
                "a field: self.settings.delay",
                "settings",
            )
        elif name == "extract_links" and self._of_scrapy:
            self._report(
                call.lineno, f"{owner}.extract_links(...)", "response.follow_all(...)", _RULES
            )

    def _spider(self, spider: Class) -> None:
        for statement in spider.node.body:
            for name in defined(statement):
                if name in _OF_SPIDERS:
                    self._report(statement.lineno, name, *_OF_SPIDERS[name])
            match statement:
                case (
                    ast.Assign(value=ast.Dict() as value) | ast.AnnAssign(value=ast.Dict() as value)
                ):
                    is_settings = "custom_settings" in defined(statement)
                    for key, setting_value in (
                        zip(value.keys, value.values, strict=True) if is_settings else ()
                    ):
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            self._report(
                                key.lineno,
                                key.value,
                                _setting(key.value, setting_value),
                                "settings",
                            )
                case ast.FunctionDef(name="closed" | "close") | ast.AsyncFunctionDef(name="closed"):
                    if any(argument.arg == "reason" for argument in statement.args.args):
                        code = f"def {statement.name}(self, reason)"
                        replacement = "def closed(self, report): report.finish_reason"
                        self._report(statement.lineno, code, replacement, _MEMBERS)

    def _part(self, class_: Class) -> None:
        """Report the methods of *class_* that belong to a Scrapy pipeline or middleware."""
        for method in class_.methods():
            parameters, counterpart = _OF_PARTS.get(method.name, (None, None))
            if parameters is None or counterpart is None:
                continue
            if parameters <= {argument.arg for argument in method.args.args}:
                self._report(method.lineno, f"{class_.node.name}.{method.name}()", *counterpart)

    def _settings_file(self) -> None:
        """Report the settings of a Scrapy project, which are a module's upper-case names."""
        assignments = [
            (statement, name)
            for statement in self._source.tree.body
            for name in defined(statement)
            if name in SETTINGS
        ]
        names = {name for _, name in assignments}
        if self._source.path.name == "settings.py" or {"BOT_NAME", "SPIDER_MODULES"} & names:
            for statement, name in assignments:
                value = getattr(statement, "value", None)
                self._report(statement.lineno, name, _setting(name, value), "settings")


def _counterpart(full_name: str) -> tuple[str, str]:
    name = full_name.rpartition(".")[2]
    if name in _NAMES and not full_name.startswith("twisted"):
        return _NAMES[name]
    while full_name not in _MODULES:
        full_name = full_name.rpartition(".")[0]
    return _MODULES[full_name]


def _setting(name: str, value: ast.expr | None) -> str:
    """Return crawlcw's replacement for a Scrapy setting with the value *value* (None: unknown)."""
    if isinstance(value, ast.Constant) and value.value is DEFAULTS.get(name):
        return f"nothing: {value.value} is the default here"
    return SETTINGS.get(name, "nothing: `crawlcw settings` lists all settings")
