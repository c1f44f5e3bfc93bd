"""Dispensing: workers that are no processes of ours ask for their share of the tasks.

They have a name and nothing else: they do not join the list of workers, nobody
looks whether they live, and nothing runs in the background. What a worker holds
is leased to its name; where it does not touch that for its time, it goes back to
the pool by the lease's end, and counts as lost as any other lease does.
"""

from crawlcw.tracking.endings import Endings
from crawlcw.tracking.pool import Pool
from crawlcw.tracking.shares import Shares


class Dispenser(Shares, Endings, Pool):
    """Hands out the tasks of a tracker to workers that ask by name.

        dispenser = Dispenser(tracker)
        for task in await dispenser.assign("w1", 20):
            await dispenser.done("w1", [task.key])

    Promised, over any number of dispensers on one ledger: nothing is held by two
    at once; a task is done once; nobody holds more than the limit it last asked
    for, where it asks for one share at a time; nothing is lost.
    """
