"""A session's connection to the run: joins at the chief, sends first values, joins again after a rollback."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dps import config
from dps.actors.caller import Caller
from dps.actors.messages import Done, Failed, Waiting
from dps.actors.patience import Patience
from dps.actors.ref import Ref
from dps.actors.requests import Request
from dps.actors.system import local_actor
from dps.client.dense import Whole, gather
from dps.client.lanes import Lanes
from dps.client.peer import Peer
from dps.errors import CANCELLED, Aborted, Cancelled, DeadlineExceeded, DpsError, TaskLost
from dps.protocol import (
    CHIEF,
    PS,
    AskCluster,
    AskState,
    AskStats,
    CloseSession,
    ClusterIs,
    Enter,
    Init,
    Initialised,
    OpenSession,
    SessionOpened,
    State,
    Stats,
    Token,
)
from dps.transport.endpoint import Runtime
from dps.transport.message import Message
from dps.transport.wire import Array
from dps.variables.plan import Plan
from dps.variables.rowlists import RowLists

if TYPE_CHECKING:
    from dps.client.compressing import Compression

log = logging.getLogger("dps")


class Connection:
    """Knows the run epoch, this session's incarnation in it and the ps; belongs to the user's thread.

    `over` tells whether this node was told to end: (exit code, reason), else None. `joined` is told each run epoch
    that this session takes part in.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        job: str,
        task: int,
        node_address: str,
        process: int,
        chief: str,
        over: Callable[[], tuple[int, str] | None],
        joined: Callable[[int], None],
    ) -> None:
        self.runtime, self.name, self.job, self.task = runtime, name, job, task
        self.caller = Caller(runtime, name)
        self.chief = Ref(chief, CHIEF)
        self.number = runtime.random.getrandbits(61) + 1
        self._node_address, self._process, self._over = node_address, process, over
        self._joined = joined
        self.epoch, self.step, self.local_step = 0, 0, 0
        self.restored = 0
        """The step that the run epoch of now began with."""
        self.reached, self.certain = 0, True
        """The highest step of the epoch before that the chief was told of, and whether there was none higher."""
        self.plan: Plan
        self.settings: dict[str, Any] = {}
        self.sync = self.bounded = False
        """The run's update mode."""
        self.refs: dict[int, Ref] = {}
        self.lanes = Lanes(runtime, self.caller)
        self.compression: Compression | None = None
        """How the session's gradients and values travel; None: as they are."""
        self.row_lists = RowLists(runtime.tuning.rows)
        self.peers: dict[int, Peer] = {}
        """The ps on which variables lie, in the order of the plan; made anew with each incarnation."""
        self.aborted = False
        """A ps has said that this epoch or incarnation is over; `reopen` is due."""
        self.abort: Callable[[], None]
        """Called for such an answer."""
        self.leads = False
        self._values: dict[str, Array] = {}
        self._wire_plan: dict[str, Any] = {}
        self._wanted: dict[str, Any] = {}
        self._asked_state: Request | None = None
        self._state_at = 0.0
        self._slice_s = runtime.tuning.client.slice_s
        self.caller.connect(chief)

    @property
    def step_ps(self) -> int:
        return self.plan.ps[0]

    # -- joining ----------------------------------------------------------------------------------------------

    def ps_tasks(self, deadline: float) -> list[int]:
        """The ps tasks of the cluster, once the chief knows all of them. Blocks until the deadline."""
        patience, pause_s = Patience(), self.runtime.tuning.client.ask_again_s
        while True:
            answer = self.ask(AskCluster(), deadline, "the chief")
            assert isinstance(answer, ClusterIs)
            if answer.complete:
                return sorted(int(task) for task in answer.cluster["ps"])
            if (
                self.caller.now() >= deadline - 2 * self.runtime.tuning.client.ask_again_s
            ):  # a later answer could come too late to say why
                raise DeadlineExceeded(f"{self.name}: {answer.text}")
            self._tell(patience, answer.text)
            self.runtime.sleep(pause_s)

    def _tell(self, patience: Patience, text: str) -> None:
        """Say whom the chief waits for, unless the chief's own log comes to the same eyes."""
        told = config.launched.is_set() or self.runtime.simulated
        told = told or local_actor(self.runtime, self.chief.address, CHIEF) is not None
        if not told and patience.due(self.caller.now()):
            log.warning("%s: %s", self.name, text)

    def open(self, plan: Plan | None, values: dict[str, Array], settings: dict[str, Any], deadline: float) -> None:
        """Join the run; the first session with a plan may be asked for the first values. Blocks."""
        self._values, self._wanted = values, settings
        self._wire_plan = {} if plan is None else plan.to_wire()
        self._join(deadline)
        self._values = {}
        config.session_opened.set()

    def reopen(self, deadline: float) -> None:
        """Join again after the epoch or the incarnation has ended. Blocks."""
        self._join(deadline)

    def _join(self, deadline: float) -> None:
        while True:
            self.aborted = False
            opened = self._open_once(deadline)
            enters = bool(self._wire_plan) or not self.sync
            if enters or opened.epoch != self.epoch:
                self.step = self.local_step = opened.step
            self.epoch, self.restored = opened.epoch, opened.step
            self.reached, self.certain = opened.reached, opened.certain
            self._joined(opened.epoch)
            self.caller.incarnation = opened.incarnation
            self.abort = self._aborter(opened.incarnation)
            self.lanes.open(self.refs, self.epoch, self._worth_sharing)
            self.peers = {
                ps: Peer(self.caller, ps, self.refs[ps], layout, self.lanes[ps], self.abort)
                for ps, layout in self.plan.layouts.items()
            }
            try:
                if enters:
                    self._enter(deadline)
                return
            except Aborted:
                continue

    def _aborter(self, incarnation: int) -> Callable[[], None]:
        """What a ps's refusal calls: it counts only while the incarnation that was refused is this session's."""

        def abort() -> None:
            self.aborted = self.aborted or self.caller.incarnation == incarnation

        return abort

    def _worth_sharing(self, ps: int) -> bool:
        return self.plan.layouts[ps].nbytes >= max(1, self.runtime.tuning.shard_nbytes)

    def _open_once(self, deadline: float) -> SessionOpened:
        message = OpenSession(
            self.number,
            self.job,
            self.task,
            self._process,
            self._node_address,
            self.epoch,
            self._wire_plan,
            self._wanted,
            self.step,
        )
        state: dict[str, Any] = {
            "text": "the chief has not answered",
            "opened": None,
            "error": None,
            "initialise": None,
            "sent": 0,
        }

        def feed(answer: Message) -> bool:
            if isinstance(answer, Waiting):
                state["text"] = answer.reason
            elif isinstance(answer, Failed):
                state["error"] = answer.exception()
            elif isinstance(answer, SessionOpened) and answer.initialise:
                if answer.epoch > state["sent"]:
                    state["initialise"] = answer
            elif isinstance(answer, SessionOpened):
                state["opened"] = answer
            return state["opened"] is not None or state["error"] is not None

        request, patience = self.caller.start(self.chief, message, feed), Patience()
        while not request.complete:
            self.check_node()
            self._initialise(state, request, deadline)
            if "waits for" in state["text"]:
                self._tell(patience, state["text"])
            left = deadline - self.caller.now()
            if left <= 0:
                self.caller.drop(request)
                raise DeadlineExceeded(f"{self.name} could not join the run at {self.chief.address}: {state['text']}")
            self.caller.wait([request], min(left, self._slice_s), stop=lambda: state["initialise"] is not None)
        if state["error"] is not None:
            raise state["error"]
        opened: SessionOpened = state["opened"]
        self._take(opened)
        return opened

    def _initialise(self, state: dict[str, Any], request: Request, deadline: float) -> None:
        """Send the first values when the chief has asked for them, once for each run epoch."""
        asked = state["initialise"]
        if asked is None:
            return
        state["initialise"], state["sent"] = None, asked.epoch
        self._take(asked)
        self._send_first_values(asked.epoch, deadline, lambda: request.complete or state["initialise"] is not None)

    def _take(self, opened: SessionOpened) -> None:
        self.plan = Plan.from_wire(opened.plan)
        self.settings = opened.settings
        mode = opened.settings["update"]["mode"]
        self.sync, self.bounded = mode == "sync", mode == "bounded"
        refs = {int(task): Ref(str(address), PS) for task, address in opened.addresses}
        for task, ref in self.refs.items():
            if refs.get(task) != ref:
                self.caller.disconnect(ref.address)
        self.refs = refs

    def _send_first_values(self, epoch: int, deadline: float, over: Callable[[], bool]) -> None:
        """All parts of all shards, in pieces; then tell the chief. An epoch that is `over` ends this too."""
        requests: list[Request] = []
        errors: list[Exception] = []

        def feed(answer: Message) -> bool:
            if isinstance(answer, Failed):
                errors.append(answer.exception())
            return isinstance(answer, Done | Failed)

        values = Whole([self._values[spec.name] for spec in self.plan.variables])
        for ps, layout in self.plan.layouts.items():
            # Zeros, and pages that go back to the system; in malloc's heap they would leave a hole for small objects.
            run = np.frombuffer(mmap.mmap(-1, max(1, layout.nbytes)), np.uint8, layout.nbytes)
            gather(self.plan, layout, values, run, trained_only=False)
            for piece in layout.pieces(self.runtime.tuning.piece_nbytes):
                arrays = tuple(run[offset : offset + n] for offset, n in piece)
                message = Init(epoch, layout.nbytes, [offset for offset, _ in piece], arrays)
                requests.append(self.caller.start(self.refs[ps], message, feed, resend_s=1.0))

        def stop() -> bool:
            return bool(errors) or over()

        self._wait_all(requests, errors, deadline, "the ps to take the first values", stop)
        if not stop():
            done = self.caller.start(self.chief, Initialised(epoch, self.number), feed)
            self._wait_all([done], errors, deadline, "the chief", stop)

    def _wait_all(
        self, requests: list[Request], errors: list[Exception], deadline: float, whom: str, stop: Callable[[], bool]
    ) -> None:
        while not self.caller.wait(requests, min(self._slice_s, max(0.0, deadline - self.caller.now())), stop):
            self.check_node()
            if stop() or self.caller.now() >= deadline:
                break
        for request in requests:
            self.caller.drop(request)
        if not stop() and self.caller.now() >= deadline:
            raise DeadlineExceeded(f"{self.name} waited for {whom}")
        for error in errors:
            if not isinstance(error, Aborted):
                raise error

    def _enter(self, deadline: float) -> None:
        """Learn the step of now from the step ps; in sync, where that ps lets nobody in during a step, take part."""
        answer = self.ask(Enter(self.epoch), deadline, f"ps:{self.step_ps}", self.refs[self.step_ps])
        assert isinstance(answer, Token)
        self.local_step = self.step = answer.step

    def ask(self, message: Message, deadline: float, whom: str, ref: Ref | None = None) -> Message:
        """Ask the chief (or a ps) until the deadline, minding this node's own end and new epochs."""
        answers: list[Message] = []
        text = [f"{whom} has not answered"]

        def feed(answer: Message) -> bool:
            if isinstance(answer, Waiting):
                text[0] = answer.reason
                return False
            answers.append(answer)
            return True

        request = self.caller.start(ref or self.chief, message, feed)
        while not self.caller.wait([request], min(self._slice_s, max(0.0, deadline - self.caller.now()))):
            self.check_node()
            if ref is not None:
                self.look_at_chief()
                if self.aborted:
                    self.caller.drop(request)
                    raise Aborted(f"run epoch {self.epoch} is over")
            if self.caller.now() >= deadline:
                self.caller.drop(request)
                raise DeadlineExceeded(f"{self.name}: {text[0]}")
        if isinstance(answers[0], Failed):
            raise answers[0].exception()
        return answers[0]

    # -- while it is open -------------------------------------------------------------------------------------

    def check_node(self) -> None:
        """Raise TaskLost when this node was told to end while the session still works, Cancelled from this process."""
        over = self._over()
        if over is not None:
            code, reason = over
            if code == CANCELLED:
                raise Cancelled(reason)
            raise TaskLost(reason or "the run has ended") if code in (0, 3) else DpsError(reason)

    def look_at_chief(self) -> None:
        """Ask the chief, at most every half second and without waiting, whether this epoch still runs."""
        now = self.caller.now()
        if now - self._state_at < self._slice_s:
            return
        self._state_at = now
        if self._asked_state is not None:
            self.caller.drop(self._asked_state)
        epoch = self.epoch

        def feed(answer: Message) -> bool:
            if isinstance(answer, State):
                self.leads = answer.leads
                if not answer.running or answer.epoch != epoch:
                    self.aborted = self.epoch == epoch or self.aborted
            return True

        self._asked_state = self.caller.start(self.chief, AskState(self.number), feed)

    def asks_leads(self, timeout_s: float) -> bool:
        """Whether this session leads now; the last known answer when the chief is away. Blocks up to `timeout_s`."""
        try:
            answer = self.caller.ask(self.chief, AskState(self.number), timeout_s)
        except DpsError:
            return self.leads
        if isinstance(answer, State):
            self.leads = answer.leads
        return self.leads

    def silent(self) -> str:
        """Which ps are disconnected, and since when, for error messages."""
        now = self.caller.now()
        away = self.caller.away
        names = [f"ps:{t} (away for {now - away[r.address]:.0f} s)" for t, r in self.refs.items() if r.address in away]
        if self.chief.address in away:
            names.append(f"the chief (away for {now - away[self.chief.address]:.0f} s)")
        return ", ".join(names)

    def stats(self, deadline: float) -> dict[str, Any]:
        """Counters of the chief and of every ps, by task name. Blocks."""
        refs = {"chief": self.chief, **{f"ps:{task}": ref for task, ref in self.refs.items()}}
        found: dict[str, Any] = {}
        for name, ref in refs.items():
            answer = self.ask(AskStats(), deadline, name, None if ref is self.chief else ref)
            assert isinstance(answer, Stats)
            found[name] = answer.values
        return found

    def close(self, error: str, timeout_s: float) -> None:
        """Leave the run. A chief that does not answer is left alone."""
        try:
            if self._over() is None:
                checkpoint_dir = str(self.settings.get("checkpoint_dir") or "")
                message = CloseSession(self.number, error, self.job, self.task, checkpoint_dir, self.step, self.epoch)
                self.caller.ask(self.chief, message, timeout_s)
        except DpsError as problem:
            log.debug("%s: could not say goodbye: %s", self.name, problem)
        finally:
            self.caller.close()
