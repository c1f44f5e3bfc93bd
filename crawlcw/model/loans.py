"""Loans: slots of a host that its owner lends to a borrower, a worker without a host to ask.

Loan and report stand in the borrower's document. The owner writes the loan, the borrower its
report. A slot counts as in use until the borrower has returned the loan, or the loan has expired.
A loan ends with the owner's lease at the latest. If an owner has not released its host, the next
owner counts the loans that have not expired.
"""

from dataclasses import KW_ONLY, dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Loan:
    """The right of one borrower to ask a host, beside its owner."""

    id: str
    _: KW_ONLY
    host: str
    slots: int  #: requests at once; 0: no limit
    expires: datetime
    ended: bool = False  #: no request may begin any more; those under way keep their slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failed request of a borrower that its owner's circuit breaker must know."""

    url: str
    reason: str
    status: int | None = None
    retry_after: float | None = None
    sent: datetime
    refused: bytes | None = None  #: the page that was throttled; None: no page was


@dataclass(frozen=True, slots=True)
class LoanReport:
    """The news of a borrower for the owner, all since the beginning of the loan."""

    loan: str  #: its id
    _: KW_ONLY
    returned: bool = False  #: no request is under way, and none will begin
    finished: int = 0  #: pages
    delay: float = 0.0  #: the adaptive delay in seconds that its answers ask for
    crawl_delay: float = 0.0  #: that of a robots.txt that it has read
    faults: tuple[Fault, ...] = ()
