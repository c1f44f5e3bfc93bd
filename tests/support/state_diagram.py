"""The state diagram of the guide, drawn from the transition table."""

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
