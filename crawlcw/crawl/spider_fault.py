"""What the spider's own code on the way to a page raised: the failure of that page alone."""

from crawlcw.crawl.callbacks import Raised
from crawlcw.errors import FetchError

#: The methods whose faults are told like those of callbacks.
HOOKS = ("before_request", "after_response", "downloader")


class SpiderFaultError(FetchError):
    """A hook of the spider's, or its downloader, raised while it worked on a request."""

    def __init__(self, name: str, raised: Raised) -> None:
        super().__init__(raised.reason, f"{name} raised {raised.message}")
        self.name = name  #: of the method
        self.raised = raised
