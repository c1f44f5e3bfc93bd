"""The end of a process in which no Python runs any more, as code in C may see to that.

A regular expression that takes for ever holds the interpreter's lock, so that
neither a thread nor a signal handler of Python gets to do anything. What counts
is the process's own CPU time: one that was stopped, or whose machine slept, has
used none.
"""

import faulthandler
import signal

_SIGNAL = getattr(signal, "SIGVTALRM", None)
_TIMER = getattr(signal, "ITIMER_VIRTUAL", None)
_users = 0


class Fuse:
    """Dumps all stacks and ends the process by SIGVTALRM when it has burnt down."""

    def __init__(self, seconds: float) -> None:
        """Burn for *seconds* of CPU time when lit; 0: never."""
        self._seconds = seconds
        self._ready = False

    def lay(self) -> None:
        """Make ready to be lit, where the system has what that takes and nobody else uses it."""
        global _users  # a process has one such timer
        if not self._seconds or self._ready or _SIGNAL is None or _TIMER is None:
            return
        if not _users and signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
            return
        # Chained to the default, which ends the process.
        faulthandler.register(_SIGNAL, file=2, chain=True)
        _users += 1
        self._ready = True

    def light(self) -> None:
        """Let it burn from its beginning."""
        if self._ready and _TIMER is not None:
            signal.setitimer(_TIMER, self._seconds)

    def put_out(self) -> None:
        """Let it not burn."""
        if self._ready and _TIMER is not None:
            signal.setitimer(_TIMER, 0)

    def remove(self) -> None:
        """Put it out for good."""
        global _users  # as above
        if self._ready and _SIGNAL is not None:
            self.put_out()
            self._ready = False
            _users -= 1
            if not _users:
                faulthandler.unregister(_SIGNAL)
