"""Check all invariants of a ledger, and repair violations."""

from crawlcw.doctor.examination import SECOND_LOOK, Example, Finding, Report, examine
from crawlcw.doctor.invariants import ADVICE

__all__ = ["ADVICE", "SECOND_LOOK", "Example", "Finding", "Report", "examine"]
