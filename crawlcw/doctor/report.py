"""What the doctor has found: kinds of findings, with examples, ready to be shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crawlcw.ledger.kind import LedgerKind
from crawlcw.model.invariants import ADVICE, Kind, Violation
from crawlcw.model.sanitize import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One of the findings of a kind; every text is printable."""

    where: Mapping[str, str]  #: `task` (its id in hex) and `url`, or `host`, or `worker`
    detail: str


@dataclass(slots=True, kw_only=True)
class Finding:
    """All findings of one kind."""

    kind: Kind
    count: int = 0
    mended: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def note(self) -> bool:
        """Whether it is worth knowing, and no violation."""
        return ADVICE[self.kind].note


@dataclass(slots=True, kw_only=True)
class Report:
    """What was looked at, and what was found."""

    facts: Mapping[str, str]  #: of the store, for people
    kind: LedgerKind = LedgerKind.SPIDER
    tasks: int = 0
    hosts: int = 0
    workers: int = 0
    findings: dict[Kind, Finding] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether no violation is left."""
        return all(each.note or each.mended == each.count for each in self.findings.values())


class Written:
    """A report that is being written."""

    def __init__(self, report: Report, *, examples: int) -> None:
        self.report = report
        self._examples = examples

    def add(self, violation: Violation, where: Mapping[str, str], *, mended: bool = False) -> None:
        """Count a violation, and keep it as an example while there are few of its kind."""
        finding = self.report.findings.setdefault(violation.kind, Finding(kind=violation.kind))
        finding.count += 1
        finding.mended += mended
        if len(finding.examples) < self._examples:
            shown = {name: printable(text) for name, text in where.items()}
            finding.examples.append(Example(where=shown, detail=printable(violation.detail)))
