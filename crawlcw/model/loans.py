"""Loans: slots of a host that its owner lends to a borrower, a worker without a host to ask.

The borrower's document contains both the loan, which the owner writes, and the report, which the
borrower writes. A slot counts as in use until the borrower has returned the loan, or the loan has
expired. A loan never lasts longer than the owner's lease. If an owner has not released its host,
the next owner counts the loans that have not expired.
"""

from dataclasses import KW_ONLY, dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Loan:
    """The right of one borrower to send requests to a host, in addition to its owner."""

    id: str
    _: KW_ONLY
    host: str
    slots: int  #: requests at the same time; 0: no limit
    expires: datetime
    is_closing: bool = False  #: no new request may begin; current requests keep their slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failed request of a borrower, for the owner's circuit breaker."""

    url: str
    reason: str
    status: int | None = None
    retry_after: float | None = None
    sent: datetime
    throttled: bytes | None = None  #: the page that was throttled; None: no page


@dataclass(frozen=True, slots=True)
class LoanReport:
    """A borrower's report to the owner, about the time since the beginning of the loan."""

    loan: str  #: the id of the loan
    _: KW_ONLY
    returned: bool = False  #: all its requests have ended, and no new one will begin
    finished: int = 0  #: number of finished pages
    delay: float = 0.0  #: the adaptive delay in seconds that follows from its responses
    crawl_delay: float = 0.0  #: seconds, from a robots.txt that it has read
    faults: tuple[Fault, ...] = ()
