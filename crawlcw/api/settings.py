"""The settings of a crawl: one frozen value, read from four sources.

A later source overrides an earlier one: the spider's class, `[tool.crawlcw]` in
pyproject.toml, the environment (`CRAWLCW_CONCURRENCY=50`), `-s concurrency=50`.
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
#: Variables with the prefix that are not settings; those of tests begin with `_OF_TESTS`.
_OTHER_VARIABLES = ("CRAWLCW_LEDGER", "CRAWLCW_PASSING_LEDGER", "CRAWLCW_TOKEN")
_OF_TESTS = "CRAWLCW_TEST_"
#: A quarter of the memory budget is for bodies, and must hold at least one.
BUDGET_IN_BODIES = 4
_AN_INSTANT = timedelta(milliseconds=1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to crawl. Every field has a default; `replace` makes a changed copy.

    Raises `SettingsError` if a value is invalid.
    """

    concurrency: Count = Count(100, "fetchers in one process", unit="fetchers", minimum=1)
    per_host_concurrency: Count = Count(
        8, "requests under way to one host at once; 0: no limit", unit="requests"
    )
    delay: Duration = Duration("0s", "the least time between two requests to one host")
    auto_throttle: Flag = Flag(True, "the delay follows how a host takes it")
    obey_robots: Flag = Flag(True, "obey robots.txt, its Crawl-delay included")
    user_agent: Text = Text(
        "crawlcw/0.1 (+https://pypi.org/project/crawlcw/)",
        "the name of the crawler; robots.txt is matched against its first word",
    )
    headers: Headers = Headers(
        {},
        "headers of every request; other origins than those of the start URLs get only `Accept`, "
        "`Accept-Language` and `Accept-Charset`",
        unit="headers",
    )
    auth: Login = Login(
        None,
        "`user:password` for Basic authentication at the origins of the start URLs",
        unit="login",
    )
    timeout: Duration = Duration(
        "30s", "for one attempt, with redirects in place", minimum=_AN_INSTANT
    )
    connect_timeout: Duration = Duration(
        "10s", "to connect, name look-up included", minimum=_AN_INSTANT
    )
    read_timeout: Duration = Duration("10s", "without a byte from the server", minimum=_AN_INSTANT)
    max_body: Size = Size("10 MiB", "of a decoded body; the rest is cut off and said so")
    truncate: Flag = Flag(True, "cut a body over max_body; if not, its page is `body-too-large`")
    max_file: SizeCeiling = SizeCeiling(
        None, "of a file that is saved (`Request(save_to=...)`); none: no limit", unit="bytes"
    )
    accept_types: Names = Names(
        (),
        "content types (`image/png`, `audio/*`) that are read although they hold no text",
        unit="types",
    )
    memory_budget: Size = Size(
        "256 MiB", "for large bodies and trees under way in a process; pages wait for their share"
    )
    max_redirects: Count = Count(10, "hops from one URL, over all hosts", unit="hops")
    max_depth: Ceiling = Ceiling(None, "links from a start URL; none: no limit", unit="links")
    max_pages: Ceiling = Ceiling(None, "pages finished in this run; none: no limit", unit="pages")
    max_items: Ceiling = Ceiling(
        None,
        "items recorded in this run, and those of pages then under way; none: no limit",
        unit="items",
    )
    max_failures: Tolerance = Tolerance(
        None,
        "pages that may be given up in a good run, as a count (`100`) or as a share of those that "
        "ended (`5%`): more do not stop it, but it exits with 3; none: no limit",
        unit="pages, or a share",
    )
    max_pages_per_host: Ceiling = Ceiling(
        10_000, "pages of one host; the start URLs' own hosts have no such limit", unit="pages"
    )
    max_links_per_page: Count = Count(
        5000, "links of one page that are followed; the rest is counted", unit="links"
    )
    max_url_length: Ceiling = Ceiling(
        2000, "characters of a link that is followed; none: 8000, as for any URL", unit="characters"
    )
    max_path_segments: Ceiling = Ceiling(
        20, "segments of a link's path, empty ones included; none: no limit", unit="segments"
    )
    max_segment_repeats: Ceiling = Ceiling(
        3, "times that one segment may be in a link's path; none: no limit", unit="times"
    )
    max_query_parameters: Ceiling = Ceiling(
        20, "parameters of a link's query; none: no limit", unit="parameters"
    )
    max_retry: Count = Count(
        3, "failed attempts before a task is given up", unit="attempts", minimum=1
    )
    retry_statuses: Statuses = Statuses(
        RETRY_STATUSES, "statuses of answers that are tried again; others fail their page at once"
    )
    throttle_statuses: Statuses = Statuses(
        (429,), "statuses of answers that slow their host down, besides 503 with Retry-After"
    )
    accept_statuses: Statuses = Statuses(
        (), "statuses whose answers a callback is given, besides 200 to 299"
    )
    max_lost: Count = Count(
        5, "workers that may crash on a task alone before it is given up", unit="workers", minimum=1
    )
    backoff_base: Duration = Duration("5s", "the longest wait after the first failed attempt")
    backoff_max: Duration = Duration("1h", "the longest wait after any failed attempt")
    host_backoff_base: Duration = Duration(
        "10s", "the rest after a host's first failure; doubles with each"
    )
    host_backoff_max: Duration = Duration("1h", "the longest rest after a host's failure")
    host_max_failures: Count = Count(
        5, "failures of a host in a row until it is given up", unit="failures", minimum=1
    )
    revisit: Revisit = Revisit(
        "never",
        "after which time a finished page is visited again: `7d`; `adaptive`: as often as it "
        "changes; `never`",
        unit="duration, or a word",
    )
    revisit_min: Duration = Duration("1h", "the shortest time of `adaptive`")
    revisit_max: Duration = Duration("30d", "the longest time of `adaptive`")
    keep_versions: Count = Count(
        0,
        "visits of a page that `export --versions` has; 0: the last one's items are kept alone",
        unit="visits",
    )
    lease: Duration = Duration(
        "60s",
        "how long a claimed task stays with a process that no longer renews",
        minimum=timedelta(seconds=1),
    )
    grace: Duration = Duration("25s", "what fetchers get to finish in after a signal to stop")
    callback_timeout: Duration = Duration(
        "60s", "for one callback; one that keeps the event loop longer ends its process; 0s: off"
    )
    ledger_give_up: Duration = Duration("10m", "how long a crawl waits for a ledger that is away")
    claim: Choice = Choice(
        "each", "claim tasks one at a time, or many in a round trip", words=("each", "batch")
    )
    browser: Flag = Flag(False, "render every page in a browser, unless its request says otherwise")
    browser_pages: Count = Count(4, "pages rendered at once in a process", unit="pages", minimum=1)
    browser_path: Text = Text(
        "auto", "the Chromium to start; auto: the one in PATH, else Playwright's own"
    )
    browser_blocked: Names = Names(
        ("image", "media", "font"), "kinds of parts that a rendered page does not get", unit="kinds"
    )
    cache: Choice = Choice(
        "off",
        "for development: answer from .crawlcw/cache, or ask and keep anew",
        words=("off", "dev", "refresh"),
    )
    cache_expires: Duration = Duration("7d", "how long a kept answer is used")
    keep_bodies: Flag = Flag(
        False, "keep each page in WARC files, for `crawlcw parse --stored` and for archives"
    )
    bodies_dir: Text = Text(
        ".crawlcw/warc", "where these files are, in a folder with the spider's name"
    )
    cookies: Flag = Flag(False, "keep cookies, in the session `default` of the whole crawl")
    login_timeout: Duration = Duration("2m", "for one login of a session", minimum=_AN_INSTANT)
    max_logins: Count = Count(
        5,
        "logins of a session that may fail in a row until it is given up",
        unit="logins",
        minimum=1,
    )
    sessions: Count = Count(
        0,
        "sessions that requests without one of their own are spread over; 0: no pool",
        unit="sessions",
    )
    proxies: Proxies = Proxies(
        (),
        "`http://user:password@host:port`, https, socks5 or socks5h: requests go through each in "
        "turn, those of a session through its own",
        unit="proxies",
    )
    proxy_env: Flag = Flag(
        True,
        "where `proxies` is none, use HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; obey NO_PROXY",
    )
    layers: Names = Names(
        (),
        "layers besides the spider's own, the outermost first: `package.module:Layer`, or the "
        "names of entry points",
    )
    proxy_ban_statuses: Statuses = Statuses(
        (), "answers that ban the proxy, or the session of a pool, which got them: another one asks"
    )
    allow_private: Names = Names(
        (), "hosts (`10.0.0.5`, `intranet:8080`) that may be at a private address", unit="names"
    )
    insecure: Flag = Flag(False, "accept any TLS certificate")
    stall_after: Duration = Duration(
        "5m", "without a move until `on_stall` is called and a warning logged; 0s: never"
    )
    failure_alarm: Tolerance = Tolerance(
        None,
        "share of the last 100 attempts that may fail until `on_failure_rate` is called and a "
        "warning logged; none: never",
        unit="share",
    )
    webhook: Webhook = Webhook(
        None,
        "URL that `crawlcw run` posts the report to as JSON when a crawl has ended",
        unit="URL",
    )
    trace: Flag = Flag(
        False, "give OpenTelemetry a span for each fetch, callback and commit (extra `otel`)"
    )
    mongo_driver: Choice = Choice(
        "pymongo",
        "the MongoDB client: PyMongo's own, or Motor, by which trackers poll for new tasks",
        words=("pymongo", "motor"),
    )

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse an unknown name with an error that suggests the nearest setting."""
        for name in given.keys() - {setting.name for setting in fields(cls)}:
            raise SettingsError(f"there is no setting {name!r}: {_nearest(name)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.backoff_max < self.backoff_base:
            raise SettingsError("backoff_max is less than backoff_base: make it longer")
        if self.host_backoff_max < self.host_backoff_base:
            raise SettingsError("host_backoff_max is less than host_backoff_base: make it longer")
        if self.cache != "off" and self.cookies:
            raise SettingsError(
                f"cache={self.cache} does not know whose cookies an answer is for: switch one off"
            )
        if self.auth is not None and any(n.lower() == "authorization" for n, _ in self.headers):
            raise SettingsError("auth and the header Authorization say the same: leave one out")
        if self.revisit_max < self.revisit_min:
            raise SettingsError("revisit_max is less than revisit_min: make it longer")
        if isinstance(self.failure_alarm, int):
            raise SettingsError("failure_alarm is a share: write it as 50% or 0.5")
        if self.memory_budget < BUDGET_IN_BODIES * self.max_body:
            raise SettingsError(
                f"memory_budget is less than {BUDGET_IN_BODIES} times max_body: "
                "make it larger, or max_body smaller"
            )

    @property
    def deadlines(self) -> dict[Reason, float]:
        """The deadlines of an attempt in seconds, by the reason that a missed one gives."""
        return {
            Reason.TIMEOUT_CONNECT: self.connect_timeout.total_seconds(),
            Reason.TIMEOUT_READ: self.read_timeout.total_seconds(),
            Reason.TIMEOUT_TOTAL: self.timeout.total_seconds(),
        }

    @property
    def retry_policy(self) -> RetryPolicy:
        """The settings about further attempts, as the type that `model` uses."""
        return RetryPolicy(
            max_retry=self.max_retry,
            base=self.backoff_base,
            ceiling=self.backoff_max,
            statuses=frozenset((*self.retry_statuses, *self.throttle_statuses)),
        )

    @property
    def revisit_policy(self) -> RevisitPolicy:
        """The settings about further visits, as the type that `model` uses."""
        return RevisitPolicy(
            recurrence=self.revisit, shortest=self.revisit_min, longest=self.revisit_max
        )

    @property
    def login_policy(self) -> LoginPolicy:
        """The settings about logins, as the type that `model` uses."""
        return LoginPolicy(most=self.max_logins, base=self.backoff_base, ceiling=self.backoff_max)

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
        """The settings about hosts, as the type that `model` uses."""
        return Policy(
            backoff_base=self.host_backoff_base,
            backoff_max=self.host_backoff_max,
            max_failures=self.host_max_failures,
            auto_throttle=self.auto_throttle,
            throttle_statuses=frozenset(self.throttle_statuses),
        )


def described() -> list[tuple[str, SettingField[Any, Any]]]:
    """Return every setting's name and field, in order."""
    return [(f.name, vars(Settings)[f.name]) for f in fields(Settings)]


def layered(
    base: Settings,
    *,
    project: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
) -> Settings:
    """Return *base* with the settings of the project, the environment and `key=value` texts.

    It ignores unknown variables, see `unknown_variables`. Raises `SettingsError` that
    names the setting, its source, and the nearest known name.
    """
    merged = _with(base, project or {}, source="[tool.crawlcw] in pyproject.toml")
    names = _variables()
    of_environment = {
        names[name.upper()]: value
        for name, value in (environment or {}).items()
        if name.startswith(_PREFIX) and name.upper() in names
    }
    merged = _with(merged, of_environment, source="the environment")
    return _with(merged, _from_texts(assignments), source="-s")


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


def _with(base: Settings, values: Mapping[str, Any], *, source: str) -> Settings:
    try:
        return replace(base, **values)
    except SettingsError as error:
        raise SettingsError(f"{error} (from {source})") from None


def _nearest(name: str) -> str:
    """Return a hint about the right name for an unknown setting."""
    if (of_scrapy := SETTINGS.get(name.upper())) is not None:
        return f"Scrapy's {name.upper()} is {of_scrapy} here"
    close_names = difflib.get_close_matches(
        name.lower(), [setting.name for setting in fields(Settings)], n=1
    )
    return f"did you mean {close_names[0]}?" if close_names else "`crawlcw settings` lists them"


def _variables() -> dict[str, str]:
    """Return the setting that each environment variable sets."""
    return {_PREFIX + setting.name.upper(): setting.name for setting in fields(Settings)}


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each `CRAWLCW_*` variable that crawlcw does not know.

    They are not an error, because a machine may have such variables for other purposes.
    """
    known_names = {*_variables(), *_OTHER_VARIABLES}
    # Compare without the common prefix, which would make any two of them similar.
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
