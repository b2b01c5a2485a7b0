"""The actor of a coordinator: it finds the workers that serve, sends them calls, and notices when one is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from dps.actors.actor import Actor
from dps.actors.ref import Ref
from dps.calls.messages import (
    CALLS,
    NOT_OF_A_READER,
    AskCall,
    AskServes,
    Call,
    CallMissing,
    LeaveCalls,
    Raised,
    Returned,
    Serves,
)
from dps.coordinator.schedule import Assignment, CallSchedule, ScheduledCall
from dps.errors import PermissionDenied, Unavailable, remote_error
from dps.messages.runs import CHIEF, AskCluster, ClusterIs
from dps.transport.message import Message

LOOK_S = 1.0
"""How often the chief is asked which workers there are."""
ANSWER_S = 5.0
"""How long the chief or a worker may take to answer until it is asked again."""
GRACE_S = 1.0
"""How long a worker may be disconnected before its call goes to another one."""
FOREVER = float("inf")


class SentCall(NamedTuple):
    """A call that a worker has to run."""

    call: ScheduledCall
    since: float
    """When it was sent, on the node's clock."""
    drop: Callable[[], None]
    """Forgets the request."""


class Dispatcher(Actor):
    """Carries out the decisions of the schedule. It runs on the node's thread. `lock` guards the schedule, which the
    threads of the program use, too."""

    def __init__(
        self, schedule: CallSchedule, lock: AbstractContextManager[object], changed: Callable[[], None]
    ) -> None:
        """`changed` is called after each event."""
        self._schedule, self._lock, self._changed = schedule, lock, changed
        self.names: dict[str, str] = {}
        """The tasks of the workers that serve, by address."""
        self.known_workers: list[str] = []
        """All workers that the chief knows, by name."""
        self.sent: dict[str, SentCall] = {}
        """The call that each worker has to run, by its address."""
        self.moved_at = 0.0
        """The time when the last call ended or the last worker came, on the runtime's clock."""
        self.refusal = ""
        """The answer of a worker whose calls need another key."""
        self._greeted: set[str] = set()
        self._number = 0

    def set_target(self, client: int, chief: str) -> None:
        """Called before the node hosts this actor. `client`: the number by which workers know this coordinator."""
        self._client, self._chief = client, Ref(chief, CHIEF)

    def started(self) -> None:
        self.moved_at = self.node.runtime.now()
        self._ask_workers()

    # -- workers -----------------------------------------------------------------------------------------------

    def _ask_workers(self) -> None:
        self.node.ask(self._chief, AskCluster(), ANSWER_S, self._take_workers)

    def _take_workers(self, answer: Message | Exception) -> None:
        if self.node.actors.get(self.name) is not self:
            return  # the coordinator has ended
        if isinstance(answer, ClusterIs):
            workers = answer.cluster.get("worker", {})
            if "worker" not in answer.cluster:
                self.refusal = NOT_OF_A_READER
            self.known_workers = [f"worker:{task}" for task in workers]
            for address in workers.values():
                self._ask_serves(address, answer.keys.get(address, "worker"))
        self.node.after(LOOK_S, self._ask_workers)

    def _ask_serves(self, address: str, user: str) -> None:
        """Ask a worker whether it serves. `user`: the owner of its key."""
        if address in self._greeted:
            return
        self._greeted.add(address)
        if address != self._chief.address:
            self.node.expect(address, user)
        self.node.watch(address, GRACE_S)

        def answered(answer: Message | Exception) -> None:
            if isinstance(answer, Serves) and address in self._greeted:
                self.names[address] = answer.task
                self.moved_at = self.node.runtime.now()
                self._apply_event(lambda: self._schedule.add_worker(address))
            else:
                self._greeted.discard(address)  # it is asked again
                if isinstance(answer, PermissionDenied):
                    self.refusal = (
                        f"{answer.args[0]}; workers run functions for who has a worker's key: give dps.Coordinator the "
                        f"chief's address, {self._chief.address}, not the server of another task"
                    )

        self.node.ask(Ref(address, CALLS), AskServes(), ANSWER_S, answered)

    def lost(self, address: str, silent_s: float) -> None:
        """A worker is away. It is greeted again, as a new one, when it answers."""
        if address not in self._greeted:
            return
        self._greeted.discard(address)
        self.node.unwatch(address)
        if self.names.pop(address, None) is not None:
            self._drop_call(address)
            self._apply_event(lambda: self._schedule.remove_worker(address))

    def _drop_call(self, address: str) -> None:
        had = self.sent.pop(address, None)
        if had is not None:
            had.drop()

    # -- calls -------------------------------------------------------------------------------------------------

    def _apply_event(self, event: Callable[[], list[Assignment]]) -> None:
        with self._lock:
            assigned = event()
        self.carry_out(assigned)
        self._changed()

    def carry_out(self, assigned: Iterable[Assignment]) -> None:
        """Send workers the calls that they have to run. Runs on the node's thread."""
        for address, call in assigned:
            if address in self.names and self._schedule.running.get(address) is call:  # it may be lost by now
                self._send_call(address, call)

    def _send_call(self, address: str, call: ScheduledCall) -> None:
        self._number += 1
        form, arrays = call.arguments
        values = [need.value for need in call.needs if need.value is not None]
        about = self._client, self.node.name, self.node.address, self._number, call.function, form
        counts = [[value, len(own)] for value, own in values]
        message = Call(*about, counts, (*arrays, *(array for _, own in values for array in own)))

        def answered(answer: Message | Exception) -> None:
            if isinstance(answer, CallMissing):
                ask()
            else:
                self._take_outcome(address, call, answer)

        def ask() -> None:
            resend = partial(AskCall, self._client, message.number)
            drop = self.node.ask(Ref(address, CALLS), message, FOREVER, answered, resend)
            self.sent[address] = SentCall(call, self.node.now(), drop)

        self._drop_call(address)
        ask()

    def _take_outcome(self, address: str, call: ScheduledCall, answer: Message | Exception) -> None:
        if isinstance(answer, Unavailable):  # its node is there, and the worker has ended
            self.lost(address, 0.0)
            return
        self.sent.pop(address, None)
        self.moved_at = self.node.runtime.now()
        schedule = self._schedule
        if isinstance(answer, Returned):
            value = answer.form, answer.arrays
            self._apply_event(lambda: schedule.record_value(address, call, value))
        elif isinstance(answer, Raised):
            error, of_ps = answer.exception, answer.of_ps
            self._apply_event(lambda: schedule.record_error(address, call, error, of_ps))
        else:
            name, text = type(answer).__name__, f"{type(answer).__name__}: {answer} (in {call.function})"
            task = self.names.get(address, address)
            make_error = partial(remote_error, name, text, task, "")
            self._apply_event(lambda: schedule.record_error(address, call, make_error, False))

    def leave_workers(self) -> None:
        """The coordinator ends: workers may forget what they keep for it. Runs on the node's thread."""
        for address in self.names:
            self._drop_call(address)
            self.node.tell(Ref(address, CALLS), LeaveCalls(self._client))
        self.names.clear()
        self.node.actors.pop(self.name, None)

    def running_texts(self) -> list[str]:
        """The call that each worker runs, and since when, as text for people. Any thread may call it."""
        now, has, names = self.node.now(), dict(self.sent), dict(self.names)
        return [
            f"{names.get(address, address)} runs {what.call.function} since {now - what.since:.0f} s"
            for address, what in has.items()
        ]
