"""Books with data from two pages, changed or dropped before they are recorded."""

from crawlcw import DropItem, Request, Spider


class Books(Spider):
    name = "books"
    home: str

    async def start(self):
        yield Request(self.home, self.parse_shelves, errback=self.failed)

    def parse_shelves(self, response):
        for shelf in response.css("a.shelf"):
            yield response.follow(shelf, context={"shelf": shelf.text()})

    def parse(self, response):
        for book in response.css("li.book"):
            found = {
                "title": book.css_first("b").text().strip(),
                "price": book.css_first("i").text().lstrip("£"),
                "shelf": response.context["shelf"],
            }
            link = book.css_first("a")
            yield response.follow(link, self.parse_book, context=found, errback=self.failed)

    def parse_book(self, response):
        authors = ", ".join(each.text().title() for each in response.css("span.author"))
        yield {**response.context, "authors": authors}

    def failed(self, request, error):
        yield {"title": f"no {error.response.status}", "price": "0.5"}

    def item(self, item, response):
        if not item["price"]:
            raise DropItem("no price")
        return {**item, "title": item["title"][:10], "price": float(item["price"])}
