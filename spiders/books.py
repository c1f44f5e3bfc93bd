"""Every book of books.toscrape.com, a shop made to be scraped.

    crawlcw run spiders/books.py

About 1,000 items {title, price, availability, rating, upc, category, url} from about 1,050 pages.
"""

from crawlcw import Settings, Spider

RATINGS = {"One": 1, "Two": 2, "Three": 3, "Four": 4, "Five": 5}


class Books(Spider):
    name = "books"
    start_urls = ["https://books.toscrape.com/"]
    settings = Settings(per_host_concurrency=4)

    def parse(self, response):
        """A page of the catalogue: 20 books, and a link to the next 20."""
        yield from response.follow_all("article.product_pod h3 a", self.parse_book)
        yield from response.follow_all("li.next a")

    def parse_book(self, response):
        table = {
            row.css_first("th").text(): row.css_first("td").text()
            for row in response.css("table.table-striped tr")
        }
        stars = response.css_first("p.star-rating").attributes["class"].split()
        yield {
            "title": response.css_first("div.product_main h1").text(),
            "price": response.css_first("p.price_color").text(),
            "availability": response.css_first("p.availability").text(strip=True),
            "rating": RATINGS[stars[-1]],
            "upc": table["UPC"],
            "category": response.css("ul.breadcrumb a")[-1].text(),
            "url": response.url,
        }
