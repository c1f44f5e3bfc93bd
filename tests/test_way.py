"""The way of one URL stays short.

To reach: 55 modules, 260 functions, 900 calls and 450 switches between modules. A change that
shortens the way lowers `LIMITS`; `python -m tests.support.way` prints the way and its counts.
"""

import pytest

from tests.support.way import counts, walked

pytestmark = pytest.mark.quick

#: Counts of today, and one in fifty for timers and watches that meet every page.
LIMITS = {"modules": 106, "functions": 550, "calls": 1360, "switches": 820}
#: To tell which module came in. A module that is gone may stay in this list.
KNOWN = """
    api.arguments api.charset api.document api.links api.markup api.page_head api.page_session
    api.request api.response api.settings_fields api.spider api.tree api.url_list api.url_traps
    api.user_code assembly crawl.adding crawl.blame crawl.callbacks
    crawl.committer crawl.coordinator crawl.crawl crawl.fetcher crawl.held_host
    crawl.host_health crawl.host_leases crawl.host_queues crawl.hosts crawl.identities
    crawl.item_sink crawl.kept_state crawl.outcomes
    crawl.network_watch crawl.parsing crawl.recording crawl.redirect_targets
    crawl.redirects crawl.revisits crawl.robots crawl.runner crawl.seen
    downloader.addresses downloader.aiohttp
    downloader.attempt_cookies downloader.bounds downloader.connector downloader.content_types
    downloader.credentials downloader.decoding downloader.heads downloader.memory_budget
    downloader.passages downloader.proxy_pool downloader.proxying downloader.rendering
    downloader.routes downloader.saving downloader.trust engine.batching
    engine.instruments engine.leases engine.ledger_retry engine.pool
    engine.run_alone engine.stats engine.watchdog ledger.documents
    ledger.kind ledger.sqlite.clock ledger.sqlite.connection ledger.sqlite.leases
    ledger.sqlite.ledger ledger.sqlite.outcomes ledger.sqlite.priorities ledger.sqlite.queries
    ledger.sqlite.rows ledger.sqlite.store ledger.sqlite.tasks ledger.sqlite.writes model.clock
    model.dropped model.health model.hosts model.item_values model.network
    model.request_options model.retry model.sanitize model.spider_state model.stalls
    model.stored_page model.task
    model.transitions model.urls model.values model.visits
"""


def test_one_page_passes_few_modules_functions_and_calls():
    ways = walked()

    found = counts(ways)
    excess = {name: count for name, count in found.items() if count > LIMITS[name]}
    shortest = min((way.modules for way in ways), key=len)
    came_in = sorted(shortest - set(KNOWN.split()))
    assert not excess, f"{found}, the limits are {LIMITS}; modules that came in: {came_in}"


def test_the_way_of_a_page_is_seen_whole():
    modules = set.union(*(way.modules for way in walked()))

    assert {"crawl.coordinator", "crawl.committer", "model.urls", "ledger.sqlite.tasks"} <= modules
