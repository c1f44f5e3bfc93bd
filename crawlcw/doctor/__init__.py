"""Check all invariants of a ledger, and repair violations."""

from crawlcw.doctor.examination import SECOND_LOOK, Example, Finding, Report, examine

__all__ = ["SECOND_LOOK", "Example", "Finding", "Report", "examine"]
