"""Reports missing tasks to people, with the command that starts each of them."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.node import Node
from dps.chief.admission import Admission
from dps.chief.cluster import Cluster
from dps.chief.ending import REJOIN_S, RunEnding
from dps.chief.epochs import Epochs
from dps.chief.members import RunMembers
from dps.cluster.spec import start_command
from dps.process.telemetry import LogThrottle, log

LOOK_S = 1.0


class MissingTasks:
    """Checks every second for missing ps and expected workers, and logs those that have been missing for 2 s."""

    def __init__(
        self, node: Node, cluster: Cluster, members: RunMembers, text: Callable[[], str], over: Callable[[], bool],
        where: str, lost: Callable[[], list[str]],
    ) -> None:  # fmt: skip
        """`text` returns what the chief waits for, as a sentence. `over` returns whether the run is over. `where` is
        the argument of `start_command`; if "", people do not start workers, and missing ones are not reported.
        `lost` returns the lost workers for which the run goes on."""
        self._node, self._cluster, self._members, self._text, self._over = node, cluster, members, text, over
        self._where, self._lost, self._throttle = where, lost, LogThrottle()

    def check_tasks(self) -> None:
        """Check now, and then every second until the run is over."""
        if self._over():
            return
        missing = self._missing()
        if not missing:
            self._throttle.end_wait()
        elif self._throttle.is_due(self._node.now()):
            log.warning("%s: %s", self._node.name, missing)
        self._node.after(LOOK_S, self.check_tasks)

    def _missing(self) -> str:
        """A sentence about missing ps, or else about workers that never registered, or that all are lost; "" if there
        are none."""
        if not self._cluster.is_complete() and not self._cluster.grouped:
            return self._text()
        never = [name for name in self._members.waiting() if int(name.partition(":")[2]) not in self._workers()]
        lost = [] if never else self._lost()
        missing = never or lost
        if not missing or not self._where:
            return ""
        command = start_command("worker", int(missing[0].partition(":")[2]), self._where)
        each = "it with" if len(missing) == 1 else "each, as"
        back = f" to come back, at most {REJOIN_S:.0f} s" if lost else ""
        return f"the chief waits for {', '.join(missing)}{back}; start {each}: {command}"

    def _workers(self) -> set[int]:
        return set(self._cluster.workers.known)


ABSENT_S = 60.0
"""How long an expected worker may take to come, or to come back, once another one has joined."""
BACK_S = 10.0
"""How long a worker that took part may take to register with a restarted chief. Nodes do so within seconds."""


class AbsentWorkers:
    """Looks at the waiting workers from time to time, and ends a restarted chief to which nothing of its run came."""

    def __init__(
        self, node: Node, cluster: Cluster, members: RunMembers, epochs: Epochs, admission: Admission, ending: RunEnding
    ) -> None:
        self._node, self._cluster, self._members = node, cluster, members
        self._epochs, self._admission, self._ending = epochs, admission, ending
        self._began_at = node.now()
        node.after(ABSENT_S / 10, self._check_workers)
        if epochs.restarted:
            node.after(ABSENT_S, self._end_unless_found)

    def _end_unless_found(self) -> None:
        """End a restarted chief if nothing, or not enough, is left of its run."""
        if not any(nodes.known for nodes in self._cluster.jobs.values()):
            self._ending.fail_run(f"no task of the run came to the restarted chief within {ABSENT_S:.0f} s")
        elif self._epochs.is_unsure:
            who = ", ".join(f"ps:{task}" for task in self._cluster.missing()) or "the report of what each ps serves"
            self._ending.fail_run(f"{who} did not come to the restarted chief within {ABSENT_S:.0f} s")

    def _check_workers(self) -> None:
        """Give up the workers that have been away for too long."""
        self._node.after(ABSENT_S / 10, self._check_workers)
        self._admission.count_early()
        since_start_s, members, restarted = self._node.now() - self._began_at, self._members, self._epochs.restarted
        for name in members.waiting():
            known = self._cluster.workers.known.get(int(name.partition(":")[2]))
            away = known is None or not known.alive
            limit_s = BACK_S if restarted and name in members.joined else ABSENT_S
            if away and since_start_s > limit_s and (members.joined or restarted):
                why = f"has not come for {limit_s:.0f} s"
                log.warning("%s: %s %s; the run may end without it", self._node.name, name, why)
                self._node.runtime.record("worker absent", name=name, why=why)
                self._ending.mark_lost(name, why)
                self._admission.give_up(name)
        self._ending.end_if_done()
