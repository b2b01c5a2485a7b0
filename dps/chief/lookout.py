"""Reports missing tasks to people, with the command that starts each of them."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.patience import Patience
from dps.actors.system import Node
from dps.chief.cluster import Cluster
from dps.chief.members import Membership
from dps.cluster.command import start_command
from dps.telemetry import log

LOOK_S = 1.0


class Lookout:
    """Checks every second for missing ps and expected workers, and logs those that have been missing for 2 s."""

    def __init__(
        self, node: Node, cluster: Cluster, members: Membership, text: Callable[[], str], over: Callable[[], bool],
        where: str,
    ) -> None:  # fmt: skip
        """`text` returns what the chief waits for, as a sentence. `over` returns whether the run is over. `where` is
        the argument of `start_command`; if "", people do not start workers, and missing ones are not reported."""
        self._node, self._cluster, self._members, self._text, self._over = node, cluster, members, text, over
        self._where, self._patience = where, Patience()

    def look(self) -> None:
        """Check now, and then every second until the run is over."""
        if self._over():
            return
        missing = self._missing()
        if not missing:
            self._patience.over()
        elif self._patience.due(self._node.now()):
            log.warning("%s: %s", self._node.name, missing)
        self._node.after(LOOK_S, self.look)

    def _missing(self) -> str:
        """A sentence about missing ps, or else about workers that never registered; "" if there are none."""
        if not self._cluster.complete() and not self._cluster.grouped:
            return self._text()
        never = [name for name in self._members.waiting() if int(name.partition(":")[2]) not in self._workers()]
        if not never or not self._where:
            return ""
        command = start_command("worker", int(never[0].partition(":")[2]), self._where)
        each = "it with" if len(never) == 1 else "each, as"
        return f"the chief waits for {', '.join(never)}; start {each}: {command}"

    def _workers(self) -> set[int]:
        return set(self._cluster.workers.known)
