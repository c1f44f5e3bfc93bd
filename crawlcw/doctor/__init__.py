"""Check all invariants of a ledger, and repair violations."""

from crawlcw.doctor.examination import RECHECK_DELAY, Example, Finding, Report, examine
from crawlcw.doctor.invariants import ADVICE

__all__ = ["ADVICE", "RECHECK_DELAY", "Example", "Finding", "Report", "examine"]
