"""A crawl without `extract` loads nothing of `crawlcw.items`."""

import subprocess
import sys

PROGRAM = """
import sys
import crawlcw
crawlcw.Spider, crawlcw.run_spider, crawlcw.Settings
response = crawlcw.Response("https://a.example/", request=crawlcw.Request("https://a.example/"))
assert response.css("h1") == []
loaded = [name for name in sys.modules if name.startswith("crawlcw.items")]
assert not loaded, loaded
"""


def test_only_extract_loads_the_package():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
