"""The calls that all workers in sync make together, such as sums of losses: a state machine on the step ps.

A call is found by the step that its workers have reached, and by how many such calls they have made since their last
push. So a worker that was away, or was started again, finds its place with the step, and nobody has to count from the
beginning. The workers that take part are those whose pushes made the step; before the first step of a run epoch all
that the quorum counts. A worker that has gone on without the call ends the wait of the others:
    with an error, because programs differ;
    without that worker and with a warning, if the caller was away or the run was rolled back meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.errors import Aborted, ConfigError
from dps.messages.sessions import APART, FIRST, Exchange, Exchanged
from dps.ps.modes.quorum import Quorum
from dps.transport.message import Message

KEPT = 4
"""The results of so many calls after one push are kept, for workers that ask again or come late."""

Answer = Callable[[Sender, Message | Exception], None]


@dataclass
class _Call:
    """One call, and the workers that have made it, by incarnation."""

    what: str
    asked: dict[int, tuple[Exchange, Sender]] = field(default_factory=dict)
    result: Message | Exception | None = None


class Exchanges:
    """The calls at the current step."""

    def __init__(self, quorum: Quorum, has_pushed: Callable[[int], bool], answer: Answer) -> None:
        """`has_pushed`: whether a push of a session for the next step is complete."""
        self._quorum, self._has_pushed, self._answer = quorum, has_pushed, answer
        self._step = -1
        self._calls: dict[tuple[bool, int], _Call] = {}
        """By whether their workers have made no push yet, and by their place."""
        self.open = False
        """Whether somebody waits."""

    # -- events -----------------------------------------------------------------------------------------------

    def join_call(self, message: Exchange, sender: Sender) -> None:
        """A worker makes a call, or asks again. Raises ConfigError for one that nobody else can make."""
        self._check_call(message, sender)
        if self._step != self._quorum.step:
            self._step, self._calls = self._quorum.step, {}
        call = self._find_call(message, sender.incarnation)
        call.asked[sender.incarnation] = message, sender
        if call.result is None and message.what != call.what:
            self._refuse_different(call, message, sender)
        if isinstance(call.result, Exchanged) and message.what != call.what:
            self._answer(sender, _alone(message, "made other calls meanwhile"))
        elif call.result is not None:
            self._answer(sender, call.result)
        else:
            self.settle_calls()
            if call.result is None and sender.incarnation in call.asked:
                self._answer(sender, Waiting(self._waiting_text(message, call)))

    def settle_calls(self) -> None:
        """Workers have come, pushed or ended: answer what can be answered now."""
        if self._step != self._quorum.step:
            self._step, self._calls = self._quorum.step, {}
        for key, call in self._calls.items():
            if call.result is None:
                self._settle_call(key, call)
        self.open = any(call.result is None for call in self._calls.values())

    # -- who ----------------------------------------------------------------------------------------------------

    def _trained(self) -> set[int]:
        """The members whose pushes made the step; none before the first one."""
        return {incarnation for _, incarnation, _ in self._quorum.chosen if incarnation in self._quorum.members}

    def _workers(self) -> list[tuple[str, int | None]]:
        """The workers that take part: name and incarnation, None for one that has not come."""
        quorum = self._quorum
        if trained := self._trained():
            return [(quorum.members[incarnation].name, incarnation) for incarnation in sorted(trained)]
        by_name = {member.name: incarnation for incarnation, member in quorum.members.items()}
        found = [(name, by_name.get(name)) for name in quorum.counted]
        short = quorum.total - len(found)
        return found + [(f"{short} more {'worker' if short == 1 else 'workers'}", None)] * (short > 0)

    def _check_call(self, message: Exchange, sender: Sender) -> None:
        if sender.incarnation not in self._quorum.members:
            raise Aborted(f"{sender.name} has left step {self._quorum.step}")
        if message.step != self._quorum.step:
            raise ConfigError(
                f"{message.what}: {sender.name} is at step {message.step}, and the run at {self._quorum.step}; values "
                "are reduced over workers that wait for each other at each step: use dps.SyncReplicas(N, N) without "
                "initial_tokens"
            )
        trained = self._trained()
        if message.since == FIRST and trained and sender.incarnation not in trained:
            raise ConfigError(
                f"{message.what}: {sender.name} has made no step since it came at step {message.step}, and the others "
                "have; reduce after apply_gradients"
            )

    # -- calls --------------------------------------------------------------------------------------------------

    def _find_call(self, message: Exchange, incarnation: int) -> _Call:
        key = message.since == FIRST, message.place
        call = self._calls.get(key)
        before = None if call is None else call.asked.get(incarnation)
        if call is None or (before is not None and call.result is not None and before[0].call < message.call):
            call = self._calls[key] = _Call(message.what)  # a push that was refused begins the step again
            for old in [k for k in self._calls if k[0] == key[0] and k[1] <= message.place - KEPT]:
                if self._calls[old].result is not None:
                    del self._calls[old]
        return call

    def _settle_call(self, key: tuple[bool, int], call: _Call) -> None:
        workers = self._workers()
        missing = [(name, incarnation) for name, incarnation in workers if incarnation not in call.asked]
        takers = [i for _, i in workers if i in call.asked and i is not None]
        if not missing:
            self._make_result(call, takers, "")
            return
        gone = [name for name, i in missing if i is not None and (self._has_pushed(i) or self._is_past(i, key))]
        if not gone:
            return
        begins_again = not self._trained() and all(call.asked[i][0].since == APART for i in takers)
        if takers and not begins_again:
            text = f"{', '.join(gone)} went on from step {self._step} without {call.what}; {SAME}"
            self._end_call(call, ConfigError(text))
        elif len(gone) == len(missing):
            why = f"{', '.join(gone)} went on from step {self._step} without it"
            if takers:
                self._make_result(call, takers, why)
            else:
                for message, sender in call.asked.values():
                    self._answer(sender, _alone(message, "went on without it"))
                call.result = ConfigError(f"{call.what}: {why}")

    def _is_past(self, incarnation: int, key: tuple[bool, int]) -> bool:
        """Whether a worker has made a later call."""
        return any(
            incarnation in call.asked and (later[0], -later[1]) < (key[0], -key[1])
            for later, call in self._calls.items()
        )

    def _make_result(self, call: _Call, takers: list[int], without: str) -> None:
        order = sorted(takers, key=lambda i: (self._quorum.members[i].task, i))
        parts = [call.asked[incarnation][0] for incarnation in order]
        arrays = tuple(part.arrays[0] for part in parts)
        self._end_call(call, Exchanged([part.head for part in parts], without, arrays))

    def _end_call(self, call: _Call, result: Message | Exception) -> None:
        call.result = result
        for _, sender in call.asked.values():
            self._answer(sender, result)

    def _refuse_different(self, call: _Call, message: Exchange, sender: Sender) -> None:
        other = next(there for there, (asked, _) in call.asked.items() if asked.what == call.what)
        name = self._quorum.members[other].name
        text = f"{sender.name} is in {message.what}, {name} in {call.what}: {SAME}"
        self._end_call(call, ConfigError(text))

    def _waiting_text(self, message: Exchange, call: _Call) -> str:
        missing = [name for name, incarnation in self._workers() if incarnation not in call.asked]
        return f"{message.what} at step {self._step} waits for {', '.join(missing)}"


SAME = "all workers must make the same calls in the same order, with arrays of the same shapes and dtypes"


def _alone(message: Exchange, why: str) -> Exchanged:
    """The answer to a worker that was away from the others' calls: its own part."""
    return Exchanged([message.head], f"the other workers {why}", message.arrays)
