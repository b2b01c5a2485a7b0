"""When the chief has ended the run well: the programs that still run hear of it, and people who is waited for."""

from __future__ import annotations

from collections.abc import Callable

from dps.launch.outcome import OVER
from dps.launch.tasks import Tasks
from dps.transport.clock import now

AGAIN_S, SELDOM_S = 0.2, 60.0
"""When the programs are told again: after the first time, which doubles each time up to the second."""
SAY_S = 5.0
"""How long programs may take until a line says that they are waited for."""


class AfterEnd:
    """Tells the programs: one that stood still when the chief told all tasks, or that has started since, would look for
    the chief for a minute. docs/decisions/0073."""

    def __init__(self, tasks: Tasks, say: Callable[[str], None]) -> None:
        self._tasks, self._say = tasks, say
        self._since: float | None = None
        """When the chief was seen to have ended well; None before."""
        self._again_s, self._again_at = AGAIN_S, 0.0
        self._said = False

    def look(self) -> None:
        """Called several times a second."""
        tasks, at = self._tasks, now()
        if not tasks.ended_well():
            return
        self._since = at if self._since is None else self._since
        if at >= self._again_at:
            self._again_at, self._again_s = at + self._again_s, min(2 * self._again_s, SELDOM_S)
            for name in tasks.programs_alive():
                tasks.children[name].signal(OVER)
        waits = tasks.workers_alive()
        if at >= self._since + SAY_S and waits and not self._said:
            self._said = True
            self._say(f"the run has ended; waits for the program{'s' * (len(waits) > 1)} of {', '.join(waits)}")
