"""Define loans, by which the owner of a host lends request slots to an idle worker, the borrower.

The owner writes the loan into the borrower's document in the ledger. The borrower writes a loan
report into the same document. A lent slot counts as in use until the borrower has returned the
loan, or the loan has expired. A loan never lasts longer than the owner's host lease. If an owner
dies, the next owner of the host still counts the slots of loans that have not expired.
"""

from dataclasses import KW_ONLY, dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Loan:
    """The right of a worker, the borrower, to send requests to a host that another worker owns."""

    id: str
    _: KW_ONLY
    host: str
    slots: int  #: limit of concurrent requests; 0: no limit
    expires: datetime
    is_closing: bool = False  #: whether the borrower may begin no new request


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failed request of a borrower; the host's owner counts it in the owner's circuit breaker."""

    url: str
    reason: str
    status: int | None = None
    retry_after: float | None = None
    sent: datetime
    throttled: bytes | None = None  #: id of the task whose request the host throttled


@dataclass(frozen=True, slots=True)
class LoanReport:
    """A borrower's report to the host's owner about all requests since the loan began."""

    loan: str  #: the id of the loan
    _: KW_ONLY
    returned: bool = False  #: whether the borrower sends no more requests under the loan
    finished: int = 0  #: number of finished pages
    delay: float = 0.0  #: adaptive delay in seconds, computed from the host's responses
    crawl_delay: float = 0.0  #: Crawl-delay of the host's robots.txt in seconds
    faults: tuple[Fault, ...] = ()
