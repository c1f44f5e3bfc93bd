from scrapy.dupefilters import RFPDupeFilter
from w3lib.url import url_query_cleaner


class WithoutSession(RFPDupeFilter):
    """Ignore the query of a URL."""

    def request_fingerprint(self, request):
        return super().request_fingerprint(request.replace(url=url_query_cleaner(request.url)))
