"""Stops waiting for expected workers whose nodes have been away for too long."""

from __future__ import annotations

from dps.actors.system import Node
from dps.chief.admission import Admission
from dps.chief.cluster import Cluster
from dps.chief.ending import Ending
from dps.chief.epochs import Epochs
from dps.chief.members import Membership
from dps.telemetry import log

ABSENT_S = 60.0
"""How long an expected worker may take to come, or to come back, once another one has joined."""
BACK_S = 10.0
"""How long a worker that took part may take to register with a restarted chief. Nodes do so within seconds."""


class Absent:
    """Looks at the waiting workers from time to time, and ends a restarted chief to which nothing of its run came."""

    def __init__(
        self, node: Node, cluster: Cluster, members: Membership, epochs: Epochs, admission: Admission, ending: Ending
    ) -> None:
        self._node, self._cluster, self._members = node, cluster, members
        self._epochs, self._admission, self._ending = epochs, admission, ending
        self._began_at = node.now()
        node.after(ABSENT_S / 10, self._look)
        if epochs.restarted:
            node.after(ABSENT_S, self._end_unless_found)

    def _end_unless_found(self) -> None:
        """End a restarted chief if nothing, or not enough, is left of its run."""
        if not any(nodes.known for nodes in self._cluster.jobs.values()):
            self._ending.fail(f"no task of the run came to the restarted chief within {ABSENT_S:.0f} s")
        elif self._epochs.unsure:
            who = ", ".join(f"ps:{task}" for task in self._cluster.missing()) or "the report of what each ps serves"
            self._ending.fail(f"{who} did not come to the restarted chief within {ABSENT_S:.0f} s")

    def _look(self) -> None:
        """Give up the workers that have been away for too long."""
        self._node.after(ABSENT_S / 10, self._look)
        self._admission.count_early()
        since_start_s, members, restarted = self._node.now() - self._began_at, self._members, self._epochs.restarted
        for name in members.waiting():
            known = self._cluster.workers.known.get(int(name.partition(":")[2]))
            away = known is None or not known.alive
            patience_s = BACK_S if restarted and name in members.joined else ABSENT_S
            if away and since_start_s > patience_s and (members.joined or restarted):
                why = f"has not come for {patience_s:.0f} s"
                log.warning("%s: %s %s; the run may end without it", self._node.name, name, why)
                self._node.runtime.record("worker absent", name=name, why=why)
                self._ending.lost(name, why)
                self._admission.give_up(name)
        self._ending.check()
