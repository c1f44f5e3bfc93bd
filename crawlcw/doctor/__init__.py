"""Looking at a whole ledger: what of it does not hold, and mending what can be mended."""

from crawlcw.doctor.examination import SECOND_LOOK, Example, Finding, Report, examine

__all__ = ["SECOND_LOOK", "Example", "Finding", "Report", "examine"]
