"""A spider whose hooks or downloader end the process, or raise.

-a kills=/7.html        the page whose process ends
-a where=before|after|downloader   in which code
-a raises=/3.html       the page whose hook raises; /gone.html has an item if on_error is called
"""

import os

from crawlcw import Settings
from tests.support.docs import DocsSpider, path_of


class Own:
    def __init__(self, default, spider):
        self.default, self.spider = default, spider

    async def fetch(self, request, *, url):
        self.spider.may_die("downloader", url)
        return await self.default.fetch(request, url=url)

    async def close(self):
        pass


class HookSpider(DocsSpider):
    name = "docs"
    settings = Settings(per_host_concurrency=0, max_depth=None, concurrency=40)

    def __init__(self, start_url="http://127.0.0.1:9/", kills="", where="", raises=""):
        super().__init__(start_urls=[start_url])
        self._kills, self._where, self._raises = kills, where, raises

    def may_die(self, where, url):
        if where == self._where and path_of(url) == self._kills:
            os._exit(3)

    def downloader(self, default):
        return Own(default, self)

    async def before_request(self, request):
        self.may_die("before", request.url)
        if path_of(request.url) == self._raises:
            raise KeyError("in a hook")

    def after_response(self, response):
        self.may_die("after", response.url)

    def on_error(self, request, error):
        if error.response is not None and error.response.body:
            yield {"answer": error.response.status}
