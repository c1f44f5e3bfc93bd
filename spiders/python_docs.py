"""A documentation site, such as Python's: one item {title, words, links, url} for each page.

    crawlcw run spiders/python_docs.py
    crawlcw run spiders/python_docs.py -a start_url=http://127.0.0.1:8000/

Follows only links to pages below the start URL's folder.
"""

from crawlcw import Settings, Spider


class PythonDocs(Spider):
    name = "python_docs"
    settings = Settings(per_host_concurrency=4)

    def __init__(self, start_url="https://docs.python.org/3/"):
        super().__init__()
        self.start_urls = [start_url]
        self.folder = start_url.rpartition("/")[0] + "/"

    def parse(self, response):
        main = response.css_first("main, [role=main]") or response.css_first("body")
        links = [link for link in response.follow_all("a[href]") if self.is_page(link.url)]
        yield {
            "title": response.css_first("title").text(strip=True),
            "words": len(main.text(separator=" ").split()),
            "links": len(links),
            "url": response.url,
        }
        yield from links

    def is_page(self, url):
        # The same folders have sources, images and archives.
        return url.startswith(self.folder) and url.partition("?")[0].endswith(("/", ".html"))
