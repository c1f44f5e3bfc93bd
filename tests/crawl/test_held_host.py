"""The phases of a held host: which may follow which, and that only a served one has turns."""

import itertools

import pytest

from crawlcw.api.host_limits import HostLimit
from crawlcw.crawl.held_host import NEXT, HeldHost, Phase, Phases
from crawlcw.crawl.host_queues import HostQueues
from crawlcw.model.hosts import Host
from crawlcw.model.task import Lease
from tests.support.ledgers import START, make_task

pytestmark = pytest.mark.quick

NAME = "example.com"
#: A way from the first phase to each.
WAYS = {
    Phase.OPENING: (),
    Phase.SERVING: (Phase.SERVING,),
    Phase.RESTING: (Phase.SERVING, Phase.RESTING),
    Phase.LEAVING: (Phase.LEAVING,),
}


class Held:
    """A host with one task that waits for its turn."""

    def __init__(self) -> None:
        self.queues = HostQueues(half_lease=30.0)
        self.queues.begin(
            NAME, limit=0, allowed=1, delay=0.0, next_start=0.0, deadline=float("inf")
        )
        self.queues.add(Lease(task=make_task(), token="w:1", fence=1, expires=START), now=0.0)
        self.host = HeldHost(
            state=Host(name=NAME), lease=None, limit=HostLimit(concurrency=0, delay=0.0), since=0.0
        )
        self.phases = Phases(self.queues)

    def enter(self, phase: Phase) -> None:
        match phase:
            case Phase.SERVING:
                self.phases.serve(self.host, now=0.0)
            case Phase.RESTING:
                self.phases.rest(self.host)
            case Phase.LEAVING:
                self.phases.leave(self.host)
            case Phase.OPENING:
                self.phases.resume(self.host, now=0.0)

    def is_served(self) -> bool:
        return self.queues.take(now=1.0) is not None


@pytest.mark.parametrize(("before", "after"), [*itertools.product(Phase, repeat=2)])
def test_a_phase_follows_only_those_of_the_table(before: Phase, after: Phase):
    held = Held()
    for phase in WAYS[before]:
        held.enter(phase)

    if after is before or after in NEXT[before]:
        held.enter(after)
        assert held.host.phase is after
        assert (NAME in held.phases.resting) == (after is Phase.RESTING)
        assert held.host.leaving == (after is Phase.LEAVING)
        assert held.is_served() == (after is Phase.SERVING)
    else:
        with pytest.raises(ValueError, match=f"is {before.name}, which {after.name} cannot"):
            held.enter(after)
        assert held.host.phase is before


def test_a_host_that_is_leased_again_goes_on_where_it_was():
    held = Held()
    held.host.opened = True
    held.enter(Phase.SERVING)
    held.enter(Phase.LEAVING)

    held.phases.resume(held.host, now=0.0)

    assert held.host.phase is Phase.SERVING
    assert held.is_served()
