"""The chief on a task's node: hosting it, and ending the task with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dps.actors.node import Node
from dps.actors.standing import Standing
from dps.chief.checkpoint_folder import CheckpointRoot
from dps.chief.operators import EXAMINER, Examiner, Operators
from dps.chief.server import ChiefActor
from dps.cluster.spec import ClusterSpec
from dps.collectives.messages import GROUPS
from dps.collectives.roster import GroupsActor
from dps.messages.runs import CHIEF, ENROLMENT, OPERATORS
from dps.process import config
from dps.process.telemetry import log
from dps.queues.actor import QueuesActor
from dps.queues.directory import DIRECTORY, Directory
from dps.queues.messages import QUEUES
from dps.transport.current import others_may_join
from dps.transport.message import TASKS

REPORT_S, FAILED_S = 10.0, 1.0
"""How often a worker that waits for the others says so; first after the second time if its program has failed."""
LOOK_S = 0.2
"""How often it looks whether it was told to end."""


class HostedChief:
    """The chief of a run, beside the queues and the directory of it. The calls return at once but for
    `wait_for_workers`."""

    def __init__(
        self, node: Node, standing: Standing, cluster: ClusterSpec, expected: tuple[Sequence[int], Sequence[int]],
        update: dict[str, Any] | None, where: str, owned: bool, restarted: bool, is_task: bool,
    ) -> None:  # fmt: skip
        """`where`: the flags by which other tasks find the cluster. `is_task`: the chief is a task of its own, whose
        node ends with it; else worker 0 hosts it."""
        self._node, self._standing, self._is_task = node, standing, is_task
        if not TASKS.issuperset(cluster.jobs):
            from dps.cluster import spec as jobs

            jobs.warn(jobs.unknown(cluster))
        launched = config.launched.is_set()
        addresses = frozenset(cluster.task_address(task.job, task.index) for task in cluster.tasks())
        self._actor = ChiefActor(*expected, update, self._ended, owned, restarted, where, launched, addresses)
        node.host(CHIEF, self._actor)
        node.host(QUEUES, QueuesActor())
        node.host(DIRECTORY, Directory())
        node.host(EXAMINER, Examiner())
        found = self._actor.cluster
        node.host(GROUPS, GroupsActor(expected[1], found.use_group, self._left_group, found.helper, found.missing_text))
        self.operators = Operators(self.drain_run, self.stop_run, found.dialled)
        node.host(OPERATORS, self.operators)
        if node.keys is not None:
            from dps.chief.operators import KeyEnrolment

            node.host(ENROLMENT, KeyEnrolment(node.keys))
        if cluster and "ps" not in cluster.jobs:
            self.without_ps()

    def keep_checkpoints(self, root: str, default: str) -> None:
        """Let sessions name folders below `root` only; "": below `default` if others may join, else any."""
        host = "" if self._is_task else self._node.name
        if root or others_may_join(self._node.address, self._node.keys):
            self._actor.cluster.checkpoint_root = CheckpointRoot(root or default, host)

    def has_ps_beside(self) -> None:
        """The ps are in this process: nobody is told to start them."""
        self._actor.cluster.where = ""

    def without_ps(self) -> None:
        """The run is to have no ps."""
        self._actor.cluster.use_no_ps()

    def _ended(self, code: int, reason: str) -> None:
        """The run is over. The chief still answers for a moment, so that every task hears the reason."""
        if self._standing.end_task(code or self._standing.ends_with, reason):
            linger_s = 0.2 if code == 0 else 1.0
            self._node.after(linger_s, self._node.stop if self._is_task else lambda: None)

    def _left_group(self, name: str) -> None:
        """A worker that trained without a ps has finished."""
        self._actor.members.mark_finished_before(name)
        self._actor.ending.end_if_done()

    def drain_run(self, why: str) -> None:
        """Have the workers stop after their step."""
        self._node.post(lambda: self._actor.drain(why))

    def stop_run(self, code: int | None = None) -> None:
        """End the run, without saving; if nothing has failed, with this exit code."""
        if code is not None:
            self._standing.ends_with = code
        self._node.post(self._actor.stop_run)

    def wait_for_workers(self, name: str, error: str = "") -> None:
        """Wait for the other workers, because the run needs its chief: `name` is the worker that hosts it, and is done,
        `error` the one that has ended its program: Python shows it after the wait.

        After SIGTERM or Ctrl-C, the others are told to stop."""
        runtime, members, drained = self._node.runtime, self._actor.members, False

        def left() -> None:
            code = 1 if error and name in members.waiting() else 0
            self._actor.handle_program_over(name, "has failed" if code else "its program is over", code)

        self._node.post(left)
        failed = f"; its program has failed: {error}" if error else ""
        report_at = runtime.now() + (FAILED_S if error else REPORT_S)
        while not self._standing.wait_over(LOOK_S):
            if config.stop_requested.is_set() and not drained:
                drained = True
                self.drain_run("the worker that hosts the chief was told to end")
            if runtime.now() >= report_at:
                report_at += REPORT_S
                there = [live.name for live in members.live.values()] + members.waiting()
                away = [f"{lost} to come back" for lost in self._actor.ending.may_come_back()]
                end = "the tasks to end" if self._actor.cluster.has_no_ps else "the ps to end"
                log.warning("%s hosts the chief and waits for %s%s", name, ", ".join(there or away) or end, failed)
