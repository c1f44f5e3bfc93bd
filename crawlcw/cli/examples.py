"""The examples that end the `--help` of each command."""

#: Example command lines by the name of the command.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("crawlcw demo",),
    "new": ("crawlcw new books https://books.toscrape.com/",),
    "check": ("crawlcw check books", "crawlcw check spiders/books.py -a category=travel"),
    "fetch": (
        "crawlcw fetch https://example.com/ | less",
        "crawlcw fetch --headers -s obey_robots=false https://example.com/",
    ),
    "parse": (
        "crawlcw parse books https://books.toscrape.com/",
        "crawlcw parse books --stored --save --yes",
    ),
    "shell": ("crawlcw shell --spider books https://books.toscrape.com/",),
    "crawl": (
        "crawlcw crawl https://docs.example.com --markdown out/ -o pages.jsonl",
        "crawlcw crawl https://example.com/docs/ --article --exclude '*/changelog/*'",
        "crawlcw crawl https://shop.example.com --items spec.json -o items.csv --max-pages 500",
    ),
    "run": (
        "crawlcw run books --concurrency 50 -o books.jsonl",
        "crawlcw run books --processes 4 --ledger mongodb://localhost/crawl",
        "crawlcw run books -s delay=1s -s max_failures=5% -a category=travel",
        "crawlcw run books --log-format json --metrics-port 9464",
    ),
    "add": (
        "crawlcw add books https://books.example/new https://books.example/sale",
        "zcat urls.gz | crawlcw add books -",
        'echo \'{"url": "https://books.example/api", "callback": "api"}\' | crawlcw add books -',
        "crawlcw add orders orders.csv --key order_id",
    ),
    "work": ("crawlcw work orders.py --concurrency 20 --drain",),
    "serve": (
        "crawlcw serve orders --port 8700",
        "crawlcw serve orders.py --host 0.0.0.0 --token-file token",
    ),
    "pause": (
        "crawlcw pause books",
        "crawlcw pause books --ledger mongodb://db.example/crawls",
    ),
    "purge": (
        "crawlcw purge books --host old.example --dry-run",
        "crawlcw purge books --status ignored --reason refused-scope --yes",
    ),
    "resume": ("crawlcw resume books",),
    "set": (
        "crawlcw set books concurrency=50 delay=1s",
        "crawlcw set books delay=",
        "crawlcw set books --reset",
    ),
    "stop": ("crawlcw stop books", "crawlcw stop books --wait --timeout 5m"),
    "dashboard": (
        "crawlcw dashboard",
        "crawlcw dashboard books --port 9000",
        "crawlcw dashboard --ledger mongodb://db.example.com/crawls",
        "crawlcw dashboard --host 0.0.0.0 --token-file token --allow-host crawls.example.com",
    ),
    "stats": (
        "crawlcw stats books",
        "crawlcw stats books --watch",
        "crawlcw stats books --by reason",
        "crawlcw stats books --json | jq .counts",
    ),
    "hosts": ("crawlcw hosts books", "crawlcw hosts books --json"),
    "export": (
        "crawlcw export books -o books.csv",
        "crawlcw export books -o - --since 1d | jq .title",
    ),
    "tasks": (
        "crawlcw tasks books --status ignored --reason timeout-read --since 1h",
        "crawlcw tasks books --url-prefix https://books.example/new/ --json --limit 0",
    ),
    "show": (
        "crawlcw show books https://books.example/1",
        "crawlcw show books https://elsewhere.example/ --json",
    ),
    "retry-failed": (
        "crawlcw retry-failed books",
        "crawlcw retry-failed books --reason timeout-read --since 2h --dry-run",
    ),
    "recrawl": (
        "crawlcw recrawl books --older-than 7d",
        "crawlcw recrawl books --url-prefix https://books.example/new/ --dry-run",
    ),
    "ignore": (
        "crawlcw ignore books https://books.example/old",
        "crawlcw ignore books --url-prefix https://books.example/tag/ --dry-run",
        "crawlcw ignore books --host ads.example --yes",
    ),
    "state": ("crawlcw state books", "crawlcw state books --json | jq .pages"),
    "reset": (
        "crawlcw reset books https://books.example/1",
        "crawlcw reset books --state --yes",
        "crawlcw reset books --status finished --callback product --dry-run",
    ),
    "policy": ("crawlcw policy orders", "crawlcw policy orders max_retry=5 lease=2m"),
    "copy": (
        "crawlcw copy books --from sqlite:///.crawlcw/ledger.db --to mongodb://localhost/crawl",
    ),
    "drop": ("crawlcw drop books --yes",),
    "doctor": (
        "crawlcw doctor books",
        "crawlcw doctor books --repair",
        "crawlcw doctor books --ready",
    ),
    "list": ("crawlcw list",),
    "plugins": ("crawlcw plugins", "crawlcw plugins --json"),
    "settings": ("crawlcw settings",),
    "guide": ("crawlcw guide", "crawlcw guide deploying"),
    "completion": (
        'eval "$(crawlcw completion bash)"',
        "crawlcw completion zsh > ~/.zfunc/_crawlcw",
        "crawlcw completion fish > ~/.config/fish/completions/crawlcw.fish",
    ),
}


def epilog(command: str) -> str | None:
    """Return the end of the help of *command*, or None if the command has no examples."""
    lines = EXAMPLES.get(command)
    # The character \b tells click not to join the lines to one paragraph.
    return None if lines is None else "\n".join(["\b", "Examples:", *(f"  {e}" for e in lines)])
