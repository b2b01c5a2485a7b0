"""Says which task a caller has never reached, and what to try; ends the wait for it if the program is told to stop."""

from __future__ import annotations

from dps import config
from dps.actors.caller import Caller
from dps.actors.patience import Patience
from dps.errors import Cancelled
from dps.telemetry import log

FIRST_S = 4.0
"""After how many seconds people are told: a task that has just started may take a while to answer."""


def to_reach(name: str, at: str) -> str:
    """What to try so that the task of this name can be reached at its address."""
    port = at.rpartition(":")[2]
    return f"open port {port} in the firewall of {name}'s machine, or start {name} with another --advertise"


class Unreached:
    """The tasks that a session connects to, of which some may not be reachable from here."""

    def __init__(self, caller: Caller, name: str) -> None:
        """`name`: the task that waits, for messages."""
        self._caller, self._name = caller, name
        self._patience = Patience(FIRST_S)
        self.tasks: dict[str, str] = {}
        """The addresses of the tasks, by name."""

    def __str__(self) -> str:
        """The first task with which there never was a connection, and what to try; "" if there is none."""
        found = next((task for task in self.tasks.items() if task[1] not in self._caller.reached), None)
        if found is None:
            return ""
        name, at = found
        return f"cannot reach {name}: nobody answers at {at}, where it told the chief that it is; {to_reach(name, at)}"

    def look(self) -> None:
        """Log it now and then, from the first seconds of a wait on. Raises Cancelled if this process was told to stop,
        because no step of it can end."""
        text = str(self)
        if not text:
            self._patience.over()
        elif config.stop_requested.is_set():
            raise Cancelled(f"{self._name}: was told to stop, and {text}")
        elif self._patience.due(self._caller.now()):
            log.warning("%s: %s", self._name, text)
