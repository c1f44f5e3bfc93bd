"""The diagrams of the guide, drawn from the tables that the code runs on."""

from crawlcw.model import health
from crawlcw.model.task import Status
from crawlcw.model.transitions import TABLE


def diagram() -> str:
    """Return the table of a task's statuses as a Mermaid state diagram."""
    names = {status: status.name.lower() for status in Status}
    lines = ["stateDiagram-v2"]
    lines += [f"    {name}: {name} {status.value}" for status, name in names.items()]
    for (before, event), afters in TABLE.items():
        start = "[*]" if before is None else names[before]
        lines += [f"    {start} --> {names[after]}: {event}" for after in afters]
    lines += ["    finished --> [*]", "    ignored --> [*]"]
    return "\n".join(lines)


def breaker_diagram() -> str:
    """Return the table of the circuit breaker as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f"    {state.name}: {state}" for state in health.State]
    lines += [f"    [*] --> {health.State.CLOSED.name}"]
    lines += [
        f"    {before.name} --> {after.name}: {event}"
        for (before, event), after in health.TABLE.items()
    ]
    return "\n".join(lines)
