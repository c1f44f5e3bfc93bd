"""`crawlcw doctor`: check a ledger's invariants, and repair violations."""

import json
from collections.abc import Iterator

import click

from crawlcw import doctor
from crawlcw.cli import options
from crawlcw.cli.exit_codes import OK, VIOLATIONS
from crawlcw.cli.ledger_option import Subject, closing, ledger_command, nothing_of
from crawlcw.cli.numbers import counted
from crawlcw.doctor import ADVICE, Finding, Report
from crawlcw.errors import LedgerConfigurationError, UsageError
from crawlcw.ledger_opening import open_for_inspection


@ledger_command("doctor")
@click.option(
    "--ready",
    is_flag=True,
    help="Only check that the ledger answers and accepts writes, for a readiness probe.",
)
@click.option("--repair", is_flag=True, help="Repair the violations that are safe to repair.")
@options.number_option(
    "--examples",
    minimum=0,
    default=5,
    about="Maximum number of findings to show for each kind; all findings are counted.",
)
@options.json_option
async def command(
    subject: Subject, *, ready: bool, repair: bool, examples: int, as_json: bool
) -> int:
    """Check the invariants of the ledger of SPIDER.

    The command checks all tasks, hosts, workers and the store itself. The check may run during a
    crawl. The exit code is 1 if the command leaves a violation unrepaired. Notes are not
    violations. SPIDER names a spider as in `crawlcw run`, or a use case.

    With --ready the command reads no task, and only checks that a crawl could use the ledger. The
    exit code is 0 if a crawl could use the ledger, 69 if the ledger cannot be reached, and 78 if
    the ledger does not accept writes. On MongoDB, --ready also accepts a ledger that does not exist
    yet.
    """
    if ready and repair:
        raise UsageError("--ready repairs nothing: give it without --repair")
    name, url, settings = subject.name, subject.ledger_url, options.settings_of()
    async with closing(open_for_inspection(url, name, settings=settings)) as ledger:
        if ready:
            if (refusal := await ledger.inspection.write_refusal()) is not None:
                raise LedgerConfigurationError(refusal)
            click.echo(json.dumps({"ready": True}) if as_json else "ready")
            return OK
        report = await doctor.examine(ledger, repair=repair, examples=examples)
    if report is None:
        raise await nothing_of(name, url)
    if as_json:
        click.echo(_json(name, report))
    else:
        for line in _lines(name, report):
            click.echo(line)
    return OK if report.is_clean else VIOLATIONS


def _json(name: str, report: Report) -> str:
    return json.dumps(
        {
            report.kind.value: name,
            "clean": report.is_clean,
            "facts": dict(report.facts),
            "examined": {
                "tasks": report.tasks,
                "hosts": report.hosts,
                "workers": report.workers,
            },
            "findings": [
                {
                    "kind": finding.kind,
                    "severity": "note" if finding.is_note else "violation",
                    "count": finding.count,
                    "repaired": finding.repaired,
                    "meaning": ADVICE[finding.kind].meaning,
                    "todo": ADVICE[finding.kind].todo,
                    "examples": [
                        {**example.where, "detail": example.detail} for example in finding.examples
                    ],
                }
                for finding in _in_order(report)
            ],
        }
    )


def _lines(name: str, report: Report) -> Iterator[str]:
    hosts = "" if report.kind.tracked else f"{counted(report.hosts, 'host')}, "
    workers = f"{counted(report.workers, 'worker')} at work"
    yield f"{name}: checked {counted(report.tasks, 'task')}, {hosts}{workers}"
    for fact, value in report.facts.items():
        yield f"  {fact}: {value}"
    for finding in _in_order(report):
        yield ""
        yield from _paragraph(finding)
    open_count = sum(f.count - f.repaired for f in report.findings.values() if not f.is_note)
    repaired_count = sum(f.repaired for f in report.findings.values())
    yield ""
    conclusion = counted(open_count, "violation") if open_count else "clean: no violation"
    yield f"{conclusion}; {repaired_count:,} repaired" if repaired_count else conclusion


def _in_order(report: Report) -> list[Finding]:
    """Return the violations and then the notes; in both lists the most frequent comes first."""
    return sorted(
        report.findings.values(),
        key=lambda finding: (finding.is_note, -finding.count, finding.kind),
    )


def _paragraph(finding: Finding) -> Iterator[str]:
    advice = ADVICE[finding.kind]
    repaired_note = f", {finding.repaired:,} repaired" if finding.repaired else ""
    title = "note" if finding.is_note else "VIOLATION"
    yield f"{title} {finding.kind} ({finding.count:,}{repaired_note}): {advice.meaning}"
    for example in finding.examples:
        where = " ".join(example.where.values())
        yield f"    {where}: {example.detail}" if where else f"    {example.detail}"
    if finding.count > len(finding.examples):
        yield f"    and {finding.count - len(finding.examples):,} more"
    if finding.repaired < finding.count:
        yield f"    what to do: {advice.todo}"
