"""A task that runs in this process, as its program holds it: what it is, how it is stopped, how it has ended."""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from dps.actors.node import Node
from dps.actors.standing import OUTSIDE, Home, Standing
from dps.cluster.spec import ClusterSpec
from dps.errors import CANCELLED, checked_seconds, told
from dps.process.record import record
from dps.process.telemetry import log
from dps.task.node import session_keys
from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.actors.actor import Actor
    from dps.actors.ref import Sender
    from dps.cluster.device import DeviceFilters
    from dps.messages.runs import TraceOrder
    from dps.ps.server import PsActor
    from dps.task.hosting import HostedChief
    from dps.tracing.recording import TaskTracer
    from dps.worker.agent import Agent


STOP_S = 5.0

serving: WeakSet[ServedTask] = WeakSet()
"""The tasks of this process that run on threads of their own and were not stopped."""


os.register_at_fork(after_in_child=serving.clear)  # the threads of these tasks are the parent's


@atexit.register
def _stop_serving() -> None:
    """Stop the tasks when the program ends without stopping them, so that it leaves the run in order."""
    for task in sorted(
        serving, key=lambda task: not task._beside.tasks
    ):  # a local server stops its ps after its worker
        task.stop()


@record
class LocalTasks:
    """What a local server has beside its worker, and ends with it."""

    tasks: tuple[ServedTask, ...] = ()
    folder: str = ""
    """The folder of their sockets."""


class ServedTask:
    """The calls of a `Server` while it serves. `Server` makes its node and actors, and sets these attributes.

    More than 12 attributes: the parts of a task meet here, and each is there for some kinds of tasks only.
    """

    runtime: Runtime
    job: str
    task: int
    """The index within the job; -1 until the chief has given one."""
    cluster: ClusterSpec
    """Empty for a task that joins by the chief's address."""
    _chief: str
    _node: Node
    _standing: Standing
    _filters: DeviceFilters
    _agent: Agent | None = None
    _ps_actor: PsActor | None = None
    _hosted: HostedChief | None = None
    _expected: Mapping[str, list[int]] = MappingProxyType({})
    """The tasks that the run is to have, by job, as the chief has said."""
    _beside = LocalTasks()
    _tracer: TaskTracer | None = None

    @property
    def name(self) -> str:
        """The task's name, such as "worker:0"; "worker:?" until the chief has given it an index."""
        return self.job if self.job == "chief" else f"{self.job}:{self.task if self.task >= 0 else '?'}"

    @property
    def address(self) -> str:
        """This task's own address."""
        return self._node.address

    @property
    def exit_code(self) -> int | None:
        """The task's exit code; None while its part in the run is not over."""
        return self._standing.exit_code

    @property
    def reason(self) -> str:
        """Why the task's part is over; "" if there is nothing to say."""
        return self._standing.reason

    @property
    def stop_requested(self) -> bool:
        """Whether the loops of this task must stop after their step: `should_stop` is true in its sessions."""
        return self._standing.stop_requested

    @property
    def target(self) -> str:
        """The chief's address, to which clients connect."""
        return self._chief

    def join(self, timeout: float | None = None) -> int | None:
        """Block until this task's part in the run is over.

        Args:
            timeout: Seconds; None: no limit.

        Returns:
            The task's exit code; None if it still runs after `timeout` seconds.
        """
        if not self._standing.wait_over(None if timeout is None else checked_seconds(timeout, math.inf)):
            return None
        self._node.join(STOP_S) if self.job in ("ps", "chief") else None
        return self.exit_code

    def stop(self) -> None:
        """End this task; a chief ends the run with it. Blocks up to 5 s.

        A worker that hosts the chief first waits for the other workers to finish, and logs every 10 s which.
        """
        self._stop_task("")

    def _stop_task(self, error: str) -> None:
        """`error`: what has ended the program."""
        for task in self._beside.tasks:
            task.stop()
        if self._hosted is not None and self.exit_code is None:
            if self.job == "worker":
                hosted, self._hosted = self._hosted, None  # an interrupted wait is not repeated
                if self._agent is not None:
                    self._node.post(self._agent.program_over)
                hosted.wait_for_workers(self.name, error)
            else:
                self._hosted.stop_run()
                self._standing.wait_over(STOP_S)
        self._standing.end_task(0, "")
        self._node.stop()
        self._node.join(STOP_S)
        serving.discard(self)
        if self._beside.folder:
            from dps.transport.private_folders import remove

            remove(self._beside.folder)

    def end_in_order(self, why: str) -> None:
        """Make this task end in order. Returns at once; `join` returns when it has ended.

        A chief stops the workers after their step and saves the last step. A ps asks the chief for permission to leave:
        with a checkpoint_dir its values are saved first, else the run ends with it.
        """
        if self._hosted is not None:
            self._hosted.drain_run(f"the chief {why}")
        elif self._agent is not None and self.job == "ps":
            agent = self._agent
            self._node.post(lambda: agent.leave(why))
        else:
            self._end_task(0, "")

    def ask_to_stop(self, whether: bool = True) -> None:
        """Have the loops of this task stop after their step, or (False) not stop any more."""
        self._standing.stop_requested = whether

    def cancel(self, reason: str) -> None:
        """End this worker's sessions from outside: their current or next call raises dps.Cancelled."""
        self._end_task(CANCELLED, reason)

    def run_ended(self) -> None:
        """The run of this task has ended well, as its launcher knows. Does nothing if the chief has said so."""
        if self._hosted is None:
            self._end_task(0, "the run has ended")

    def end_now(self, code: int = 0) -> None:
        """Make this task, and the run if it is the chief, end with an exit code, without saving. Returns at once."""
        if self._hosted is None:
            self._end_task(code, "")
        else:
            self._hosted.stop_run(code)

    def host(self, name: str, actor: Actor) -> None:
        """Give a further actor a name on this task's node, which runs already."""
        actor.node = self._node  # it may be posted to at once

        def begin() -> None:
            self._node.host(name, actor)
            actor.started()

        self._node.post(begin)

    def wait_joined(self, deadline: float) -> None:
        """Block until the chief has answered this task; `deadline` is on the runtime's clock."""
        self._standing.wait_joined(deadline, self.name, self._chief)

    @property
    def is_first(self) -> bool:
        """Whether this task logs for all workers: it is not a worker, or has the lowest index."""
        if self.job != "worker":
            return True
        known = self.cluster.task_indices("worker") if "worker" in self.cluster.jobs else [0]
        return self.task == known[0]

    def expected(self, job: str) -> list[int] | None:
        """The tasks that the run is to have: those of the cluster, else as the chief has said. Does not block.

        Args:
            job: A job.

        Returns:
            Their indices; None if that is not known: the chief has not answered yet, or any number of tasks may come.
        """
        if self.cluster:
            return list(self.cluster.task_indices(job)) if job in self.cluster.jobs else []
        found = self._expected.get(job)
        return None if found is None else list(found)

    def check_sees(self, job: str, tasks: Sequence[int]) -> None:
        """Raise ConfigError if the device filters leave out one of these tasks."""
        self._filters.check(self.name, job, tasks)

    def home(self) -> Home:
        """The arguments with which a session connects."""
        who = self.runtime, self.name, self.job, self.task, self.address, self._node.incarnation
        keys = session_keys(self.job, self._node.keys)
        standing = self._chief, self._standing.exit_state, self._standing.session_joined, self._standing.hooks
        more = self._standing.progress.record_push, self._standing.track, self._standing.pushes_in_flight
        return Home(*who, *standing, keys, self._standing.named, self._node.ticket, *more)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._stop_task(told(error) if isinstance(error, Exception) else "")

    def __repr__(self) -> str:
        chief = "" if self.job == "chief" else f"; the chief is at {self.target}"
        return f"<Server {self.name} at {self.address}: {self._standing}{chief}>"

    def _serve(self) -> None:
        self._node.start()
        if self.runtime.threads:
            serving.add(self)

    # -- what actors tell, on the node's thread ---------------------------------------------------------------

    def _progress(self) -> list[Any]:
        return self._standing.progress.report_progress(self._node.now())

    def _carry_out_trace(self, order: TraceOrder, sender: Sender) -> None:
        if self._tracer is None:
            from dps.tracing.recording import TaskTracer  # here: most tasks are never traced

            self._tracer = TaskTracer(self._node, self._standing.hooks)
        self._tracer.carry_out(order, sender)

    def _seen_epoch(self) -> int:
        return self._standing.session_epoch if self._ps_actor is None else self._ps_actor.epoch

    def _has_joined(self, task: int, expected: dict[str, Any]) -> None:
        self._expected = expected
        if self.task < 0:
            self.task = task
            self._node.name = self.name
        if self.job in OUTSIDE:
            self._node.expect(self._chief, "chief")
        if self.job == "evaluator" and "announcer" not in self._node.actors:
            from dps.queues.directory import Announcer  # the chief does not count it, and so tells it of no end else

            self.host("announcer", Announcer(self.job, self._chief))
            self._learn_keys(self.host)
        self._standing.mark_joined()

    def _learn_keys(self, host: Callable[[str, Actor], object]) -> None:
        """Learn from the chief which keys have joined by tokens. `host` gives an actor a name on the node."""
        if self._node.keys is not None:
            from dps.worker.joining import EnrolledKeys

            host("joined", EnrolledKeys(self._chief, self._node.keys.accepted))

    def _follow_chief(self, chief: str, job: str, task: int) -> None:
        """This process was given the address of another task, which has told it the chief's."""
        self._chief = chief
        self._standing.named = task if job == "worker" else -1

    def _request_stop(self, reason: str) -> None:
        """The run should end: make `should_stop` true in this task's sessions."""
        if self.job == "worker" and not self.stop_requested:
            self._standing.stop_requested = True
            log.warning("%s: stopping after this step: %s", self.name, reason)

    def _end_task(self, code: int, reason: str) -> None:
        """This task's part is over, because the chief said so or is gone."""
        if self._standing.end_task(code, reason) and self._hosted is None and self.job in ("ps", "chief"):
            self._node.stop()
