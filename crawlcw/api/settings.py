"""Define the settings of a crawl, and read them from four sources.

The sources are the spider's class, `[tool.crawlcw]` in pyproject.toml, the environment
(`CRAWLCW_CONCURRENCY=50`) and `-s concurrency=50`. A later source overrides earlier sources.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from crawlcw.api.links import TrapPolicy
from crawlcw.api.scrapy_words import SETTINGS
from crawlcw.api.settings_fields import (
    Ceiling,
    Choice,
    Count,
    Duration,
    Flag,
    Headers,
    Login,
    Names,
    Proxies,
    Revisit,
    SettingField,
    Size,
    SizeCeiling,
    Statuses,
    Text,
    Tolerance,
    Webhook,
)
from crawlcw.errors import Reason, SettingsError
from crawlcw.model.health import Policy
from crawlcw.model.identities import LoginPolicy
from crawlcw.model.retry import RETRY_STATUSES, RetryPolicy
from crawlcw.model.visits import RevisitPolicy

_PREFIX = "CRAWLCW_"
#: Environment variables that are not settings; the names for tests begin as in `_OF_TESTS`.
_OTHER_VARIABLES = ("CRAWLCW_LEDGER", "CRAWLCW_PASSING_LEDGER", "CRAWLCW_TOKEN")
_OF_TESTS = "CRAWLCW_TEST_"
#: One quarter of the memory budget is for bodies; this quarter must hold at least one body.
BUDGET_IN_BODIES = 4
_AN_INSTANT = timedelta(milliseconds=1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a crawl. Every field has a default; `replace` makes a changed copy.

    Raises `SettingsError` if a value is invalid.
    """

    concurrency: Count = Count(
        100, "fetchers in one process; each works on one page at a time", unit="fetchers", minimum=1
    )
    per_host_concurrency: Count = Count(
        8, "most simultaneous requests to one host; 0: no limit", unit="requests"
    )
    delay: Duration = Duration("0s", "least time between two requests to one host")
    auto_throttle: Flag = Flag(
        True, "slow a host down after 429, 503 and slow responses, then speed up again"
    )
    obey_robots: Flag = Flag(True, "obey robots.txt, including its Crawl-delay")
    user_agent: Text = Text(
        "crawlcw/0.1 (+https://pypi.org/project/crawlcw/)",
        "name of the crawler; its first word selects the group in robots.txt",
    )
    headers: Headers = Headers(
        {},
        "headers of every request; an origin without a start URL gets only `Accept`, "
        "`Accept-Language` and `Accept-Charset`",
        unit="headers",
    )
    auth: Login = Login(
        None,
        "`user:password` for Basic authentication at the origins of the start URLs",
        unit="login",
    )
    timeout: Duration = Duration(
        "30s",
        "longest time of one attempt, including redirects within the site",
        minimum=_AN_INSTANT,
    )
    connect_timeout: Duration = Duration(
        "10s", "longest time to connect, including the DNS lookup", minimum=_AN_INSTANT
    )
    read_timeout: Duration = Duration(
        "10s", "longest time without a byte from the server", minimum=_AN_INSTANT
    )
    max_body: Size = Size(
        "10 MiB",
        "largest decoded body; crawlcw cuts off the bytes beyond it, and sets `response.truncated`",
    )
    truncate: Flag = Flag(
        True, "cut a body larger than `max_body`; if false, its page fails as `body-too-large`"
    )
    max_file: SizeCeiling = SizeCeiling(
        None, "largest file that is saved (`Request(save_to=...)`); none: no limit", unit="bytes"
    )
    accept_types: Names = Names(
        (),
        "content types (`image/png`, `audio/*`) that crawlcw reads besides text",
        unit="types",
    )
    memory_budget: Size = Size(
        "256 MiB",
        "memory of a process for large bodies and their trees; pages wait until enough is free",
    )
    max_redirects: Count = Count(10, "most redirects from one URL, over all hosts", unit="hops")
    max_depth: Ceiling = Ceiling(
        None,
        "most links from a start URL to a page; 0: only the pages of start URLs; none: no limit",
        unit="links",
        minimum=0,
    )
    max_pages: Ceiling = Ceiling(
        None,
        "number of finished pages and responses to `response.fetch` after which this run stops; "
        "none: no limit",
        unit="pages",
    )
    max_items: Ceiling = Ceiling(
        None,
        "number of recorded items after which this run stops; pages in progress may still add "
        "items; none: no limit",
        unit="items",
    )
    max_failures: Tolerance = Tolerance(
        None,
        "pages that a run may give up, as a count (`100`) or a share of the ended pages "
        "(`5%`); a run that gives up more still completes, but exits with 3; none: no limit",
        unit="pages, or a share",
    )
    max_pages_per_host: Ceiling = Ceiling(
        10_000, "most pages of one host; hosts of start URLs have no limit", unit="pages"
    )
    max_links_per_page: Count = Count(
        5000,
        "most links of one page that are followed; further links are only counted",
        unit="links",
    )
    url_rules: Names = Names(
        (),
        "`tracking`: remove tracking parameters such as `utm_source` from each URL; `canonical`: "
        "a page belongs to the URL of its `<link rel=canonical>`",
        unit="rules",
        choices=("tracking", "canonical"),
    )
    referer: Choice = Choice(
        "off",
        "header Referer of the requests that a page leads to: `off`: none; `origin`: the page's "
        "origin; `policy`: by the page's Referrer-Policy",
        choices=("off", "origin", "policy"),
    )
    max_url_length: Ceiling = Ceiling(
        2000, "longest link that is followed; none: 8000, the limit of every URL", unit="characters"
    )
    max_path_segments: Ceiling = Ceiling(
        20,
        "most segments in the path of a link, including empty ones; none: no limit",
        unit="segments",
    )
    max_segment_repeats: Ceiling = Ceiling(
        3, "how often one segment may occur in the path of a link; none: no limit", unit="times"
    )
    max_query_parameters: Ceiling = Ceiling(
        20, "most parameters in the query of a link; none: no limit", unit="parameters"
    )
    max_retry: Count = Count(
        3,
        "number of failed attempts after which the crawl gives up a task",
        unit="attempts",
        minimum=1,
    )
    retry_statuses: Statuses = Statuses(
        RETRY_STATUSES,
        "HTTP statuses that are tried again; other error statuses fail their page at once",
    )
    throttle_statuses: Statuses = Statuses(
        (429,),
        "HTTP statuses after which crawlcw slows their host down; a 503 with Retry-After has "
        "the same effect",
    )
    accept_statuses: Statuses = Statuses(
        (), "HTTP statuses besides 200 to 299 whose responses reach the callback"
    )
    max_lost: Count = Count(
        5,
        "number of crashes after which the crawl gives up a task; only crashes of a worker "
        "that ran the task alone count",
        unit="workers",
        minimum=1,
    )
    backoff_base: Duration = Duration(
        "5s", "longest wait after the first failed attempt; each further failure doubles it"
    )
    backoff_max: Duration = Duration("1h", "longest wait after any failed attempt")
    host_backoff_base: Duration = Duration(
        "10s", "rest of a host after its first failure; each further failure doubles it"
    )
    host_backoff_max: Duration = Duration("1h", "longest rest of a host after a failure")
    host_max_failures: Count = Count(
        5,
        "number of failures in a row after which the crawl gives up a host",
        unit="failures",
        minimum=1,
    )
    revisit: Revisit = Revisit(
        "never",
        "when a finished page is visited again: after a duration (`7d`), as often as it changes "
        "(`adaptive`), or `never`",
        unit="duration, or a word",
    )
    revisit_min: Duration = Duration(
        "1h", "shortest time between two visits, if `revisit` is `adaptive`"
    )
    revisit_max: Duration = Duration(
        "30d", "longest time between two visits, if `revisit` is `adaptive`"
    )
    keep_versions: Count = Count(
        0,
        "how many visits of a page keep their items for `export --versions`; 0: only the last "
        "visit",
        unit="visits",
    )
    keep_running: Flag = Flag(
        False,
        "when no page is due, wait for pages of `crawlcw add` and for revisits, instead of ending "
        "the crawl",
    )
    lease: Duration = Duration(
        "60s",
        "how long a process keeps a claimed task without renewing its lease",
        minimum=timedelta(seconds=1),
    )
    grace: Duration = Duration("25s", "time for fetchers to finish after a signal to stop")
    callback_timeout: Duration = Duration(
        "60s",
        "longest time of one callback; the process ends if a callback blocks the event loop for "
        "longer; 0s: no limit",
    )
    ledger_give_up: Duration = Duration(
        "10m", "how long a crawl waits for a ledger that does not answer"
    )
    claim: Choice = Choice(
        "each",
        "claim tasks one at a time (`each`), or many in one round trip (`batch`)",
        choices=("each", "batch"),
    )
    browser: Flag = Flag(
        False, "render every page in a browser, unless its request has `browser=False`"
    )
    browser_pages: Count = Count(
        4, "pages that one process renders at the same time", unit="pages", minimum=1
    )
    browser_path: Text = Text(
        "auto", "path of Chromium; auto: the Chromium in PATH, otherwise Playwright's"
    )
    browser_blocked: Names = Names(
        ("image", "media", "font"),
        "kinds of resources that a rendered page does not load",
        unit="kinds",
    )
    cache: Choice = Choice(
        "off",
        "for development: `dev` uses the responses in .crawlcw/cache, `refresh` replaces them",
        choices=("off", "dev", "refresh"),
    )
    cache_expires: Duration = Duration("7d", "how long a cached response is used")
    keep_bodies: Flag = Flag(
        False,
        "store the body of each page in WARC files, for `crawlcw parse --stored` and for archives",
    )
    bodies_dir: Text = Text(
        ".crawlcw/warc", "folder of the WARC files; each spider has its own folder in it"
    )
    cookies: Flag = Flag(
        False, "keep cookies in the session `default`, which the whole crawl shares"
    )
    login_timeout: Duration = Duration(
        "2m", "longest time of one login of a session", minimum=_AN_INSTANT
    )
    max_logins: Count = Count(
        5,
        "number of failed logins in a row after which the crawl gives up a session",
        unit="logins",
        minimum=1,
    )
    sessions: Count = Count(
        0,
        "sessions in the pool for requests that name no session; 0: no pool",
        unit="sessions",
    )
    proxies: Proxies = Proxies(
        (),
        "URLs of proxies, such as `http://user:password@host:port`, also https, socks5 or socks5h; "
        "requests use them in turn, and each session keeps one",
        unit="proxies",
    )
    proxy_env: Flag = Flag(
        True,
        "if `proxies` is none, use HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, and obey NO_PROXY",
    )
    layers: Names = Names(
        (),
        "layers besides the spider's own, the outermost first, as `package.module:Layer` or the "
        "name of an entry point",
    )
    proxy_ban_statuses: Statuses = Statuses(
        (),
        "HTTP statuses that show that a host has banned the proxy, or the session of the "
        "pool; crawlcw then sends the request through another proxy or session",
    )
    allow_private: Names = Names(
        (), "hosts (`10.0.0.5`, `intranet:8080`) that may have a private address", unit="names"
    )
    any_port: Flag = Flag(
        False, "request any port; false: 80, 443, 8000 to 8999, and the ports of the start URLs"
    )
    insecure: Flag = Flag(False, "accept any TLS certificate")
    idle_after: Duration = Duration(
        "5m",
        "time without progress after which crawlcw calls `on_idle` and logs a warning; 0s: never",
    )
    failure_alarm: Tolerance = Tolerance(
        None,
        "largest share of failures among the last 100 attempts; above it, crawlcw calls "
        "`on_failure_rate` and logs a warning; none: never",
        unit="share",
    )
    webhook: Webhook = Webhook(
        None,
        "URL to which `crawlcw run` posts the report as JSON when the crawl has ended",
        unit="URL",
    )
    trace: Flag = Flag(
        False, "create an OpenTelemetry span for each fetch, callback and commit (extra `otel`)"
    )
    mongo_driver: Choice = Choice(
        "pymongo",
        "MongoDB client: `pymongo` or `motor`; with Motor, trackers poll for new tasks",
        choices=("pymongo", "motor"),
    )

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Refuse an unknown setting with an error that suggests the nearest setting."""
        for name in values.keys() - {setting.name for setting in fields(cls)}:
            raise SettingsError(f"there is no setting {name!r}: {_hint_for_setting(name)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.backoff_max < self.backoff_base:
            raise SettingsError("backoff_max is less than backoff_base: increase backoff_max")
        if self.host_backoff_max < self.host_backoff_base:
            raise SettingsError(
                "host_backoff_max is less than host_backoff_base: increase host_backoff_max"
            )
        if self.cache != "off" and self.cookies:
            raise SettingsError(
                f"cache={self.cache} stores responses without their cookies: set cache=off or "
                "cookies=false"
            )
        if self.auth is not None and any(n.lower() == "authorization" for n, _ in self.headers):
            raise SettingsError("auth and the header Authorization both set the login: remove one")
        if self.revisit_max < self.revisit_min:
            raise SettingsError("revisit_max is less than revisit_min: increase revisit_max")
        if isinstance(self.failure_alarm, int):
            raise SettingsError("failure_alarm is a share: write it as 50% or 0.5")
        if self.memory_budget < BUDGET_IN_BODIES * self.max_body:
            raise SettingsError(
                f"memory_budget is less than {BUDGET_IN_BODIES} times max_body: "
                "increase memory_budget, or decrease max_body"
            )

    @property
    def deadlines(self) -> dict[Reason, float]:
        """Maps each reason for a timeout to the seconds after which the attempt fails."""
        return {
            Reason.TIMEOUT_CONNECT: self.connect_timeout.total_seconds(),
            Reason.TIMEOUT_READ: self.read_timeout.total_seconds(),
            Reason.TIMEOUT_TOTAL: self.timeout.total_seconds(),
        }

    @property
    def retry_policy(self) -> RetryPolicy:
        """The settings about retries, as a `RetryPolicy` of the package `model`."""
        return RetryPolicy(
            max_retry=self.max_retry,
            base=self.backoff_base,
            ceiling=self.backoff_max,
            statuses=frozenset((*self.retry_statuses, *self.throttle_statuses)),
        )

    @property
    def revisit_policy(self) -> RevisitPolicy:
        """The settings about revisits, as the type that the package `model` uses."""
        return RevisitPolicy(
            recurrence=self.revisit, shortest=self.revisit_min, longest=self.revisit_max
        )

    @property
    def login_policy(self) -> LoginPolicy:
        """The settings about logins, as the type that the package `model` uses."""
        return LoginPolicy(
            max_failures=self.max_logins, base=self.backoff_base, ceiling=self.backoff_max
        )

    @property
    def trap_policy(self) -> TrapPolicy:
        """The settings about crawler traps, as a `TrapPolicy`."""
        return TrapPolicy(
            max_length=self.max_url_length,
            max_path_segments=self.max_path_segments,
            max_segment_repeats=self.max_segment_repeats,
            max_query_parameters=self.max_query_parameters,
        )

    @property
    def host_policy(self) -> Policy:
        """The settings about hosts, as the type that the package `model` uses."""
        return Policy(
            backoff_base=self.host_backoff_base,
            backoff_max=self.host_backoff_max,
            max_failures=self.host_max_failures,
            auto_throttle=self.auto_throttle,
            throttle_statuses=frozenset(self.throttle_statuses),
        )


def described() -> list[tuple[str, SettingField[Any, Any]]]:
    """Return the name and the field of every setting, in the order of definition."""
    return [(f.name, vars(Settings)[f.name]) for f in fields(Settings)]


def layered(
    base: Settings,
    *,
    project: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
) -> Settings:
    """Return *base* with the settings of the project, the environment and `key=value` texts.

    Unknown variables of the environment are ignored (see `unknown_variables`). Raises
    `SettingsError` that names the setting, the source, and the nearest known name.
    """
    merged_settings = _replaced_settings(
        base, project or {}, source="[tool.crawlcw] in pyproject.toml"
    )
    name_by_variable = _name_by_variable()
    of_environment = {
        name_by_variable[name.upper()]: value
        for name, value in (environment or {}).items()
        if name.startswith(_PREFIX) and name.upper() in name_by_variable
    }
    merged_settings = _replaced_settings(merged_settings, of_environment, source="the environment")
    return _replaced_settings(merged_settings, _from_texts(assignments), source="-s")


def project_settings(folder: Path) -> dict[str, Any]:
    """Return `[tool.crawlcw]` of the nearest pyproject.toml at or above *folder*, or `{}`."""
    for directory in (folder, *folder.parents):
        path = directory / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"cannot read {path}: {error}") from None
        tools = document.get("tool", {})
        section = tools.get("crawlcw", {}) if isinstance(tools, dict) else tools
        if not isinstance(section, dict):
            raise SettingsError(f"[tool.crawlcw] in {path} is not a table")
        return section
    return {}


def _replaced_settings(base: Settings, values: Mapping[str, Any], *, source: str) -> Settings:
    try:
        return replace(base, **values)
    except SettingsError as error:
        raise SettingsError(f"{error} (from {source})") from None


def _hint_for_setting(name: str) -> str:
    """Return a hint about the right name for an unknown setting."""
    if (of_scrapy := SETTINGS.get(name.upper())) is not None:
        return f"Scrapy's {name.upper()} is {of_scrapy} here"
    close_names = difflib.get_close_matches(
        name.lower(), [setting.name for setting in fields(Settings)], n=1
    )
    return f"did you mean {close_names[0]}?" if close_names else "`crawlcw settings` lists them"


def _name_by_variable() -> dict[str, str]:
    """Return a mapping from each environment variable to the name of its setting."""
    return {_PREFIX + setting.name.upper(): setting.name for setting in fields(Settings)}


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each `CRAWLCW_*` variable that crawlcw does not know.

    An unknown variable is not an error, because other programs may use it.
    """
    known_names = {*_name_by_variable(), *_OTHER_VARIABLES}
    # Compare the variables without their common prefix, which would make any two names similar.
    bare_names = [variable.removeprefix(_PREFIX) for variable in known_names]
    sentences = []
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name.upper() not in known_names and _OF_TESTS not in name:
            close_names = difflib.get_close_matches(
                name.removeprefix(_PREFIX).upper(), bare_names, n=1
            )
            hint = (
                f"did you mean {_PREFIX}{close_names[0]}?"
                if close_names
                else "`crawlcw settings` lists the settings"
            )
            sentences.append(f"the environment variable {name} is ignored: {hint}")
    return sentences


def _from_texts(assignments: Iterable[str]) -> dict[str, str]:
    values = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"-s takes NAME=VALUE, not {text!r}")
        values[name.strip().lower()] = value.strip()
    return values
