"""Synchronous steps as a state machine: whose pushes make a step, and who gets a token. Lives on the step ps.

Events go in (members, entries, reports of complete pushes), actions come out in order: `Decision`s that every ps
carries out, and `Grant`s that answer waiting pushes with a token. No clock, no sockets. After every event:
    a push is in a step's set only if it is complete on every ps and not older than the step;
    a step has its quota: only workers that took part and ended, and gradients that were refused, lower it;
    tokens made for a step never exceed max(total, aggregate) but to end a standstill;
    as long as a counted worker lives, and the step is not short of workers, some worker can go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dps.messages.sessions import APPLIED, DROPPED, REFUSED
from dps.process.record import record

PushId = tuple[int, int, int]
"""Task index, incarnation, push number: the order of summation."""


class Decision(NamedTuple):
    """What every ps does next, in this order: apply `chosen` as step `step`, drop, refuse, forget `ended`."""

    step: int
    chosen: tuple[PushId, ...] = ()
    dropped: tuple[PushId, ...] = ()
    refused: tuple[tuple[PushId, str], ...] = ()
    ended: tuple[int, ...] = ()


class Grant(NamedTuple):
    """A token for a waiting push (`number` 0: for an entry); its value is the session's local step from now on."""

    incarnation: int
    number: int
    step: int
    status: str
    reason: str = ""


@record
class QuorumMember:
    """A session that takes part: the index and name of its task."""

    task: int
    name: str
    worker: bool = True


@dataclass(slots=True)
class _Waiting:
    id: PushId
    status: str
    reason: str = ""


@dataclass(slots=True)
class _Reported:
    step: int
    by: dict[int, str] = field(default_factory=dict)


class Quorum:
    """`aggregate` of `total` pushes make a step; None: as many as there are workers.

    More than 12 attributes: they are the state of one machine, and each event changes several of them.
    """

    def __init__(
        self,
        ps: Sequence[int],
        step: int,
        aggregate: int | None = None,
        total: int | None = None,
        initial_tokens: int | None = None,
    ) -> None:
        self.ps = tuple(ps)
        self.step = step
        self.chosen: Sequence[PushId] = ()
        """The pushes of which the current step was made; () if it was not made here."""
        self.configured_aggregate, self.configured_total = aggregate, total
        self._initial_tokens = initial_tokens
        self._usual = aggregate is total is initial_tokens is None
        self.tokens: deque[int] = deque()
        """The values of the tokens that are left, the oldest first: a worker's next local step is the value of the
        token that it takes. With `initial_tokens` those that are left when a step is made stay, as in TensorFlow's
        queue. Otherwise they are discarded, and every token has the value of the current step."""
        self._started = False
        self._told = False
        """Whether the members were told before. Those of the first list count whether they have entered or not."""
        self.members: dict[int, QuorumMember] = {}
        self.counted: list[str] = []
        """Names of the workers that this step waits for: joined, expected, or given up before they came."""
        self._absent: set[str] = set()
        """Workers of `counted` that were given up before they came."""
        self._gone = 0
        self._others_gone: set[str] = set()
        """Members that are not workers of the cluster, took part, and have ended."""
        self._entered: set[int] = set()
        self._entering: list[int] = []
        self._leaving: list[int] = []
        self._reports: dict[tuple[int, int], _Reported] = {}
        self._next: dict[int, int] = {}
        self._held: list[PushId] = []
        self._excused: list[int] = []
        self._waiting: deque[_Waiting] = deque()

    # -- events -----------------------------------------------------------------------------------------------

    def set_members(
        self, members: dict[int, QuorumMember], expected: Sequence[str], gone: int, absent: Sequence[str] = ()
    ) -> list[Decision | Grant]:
        """The members as the chief sees them now. `expected`: workers that have not joined yet. `absent`: those of them
        that were given up. `gone`: how many have joined and ended."""
        ended = sorted(set(self.members) - set(members))
        others = {self.members[i].name for i in ended if not self.members[i].worker}
        self.members, self._gone, self._absent = dict(members), gone, set(absent)
        names = {m.name for m in members.values()}
        self._others_gone = (self._others_gone | others.intersection(self.counted)) - names
        counted = [n for n in self.counted if n in names or n in expected or n in self._absent]
        for _ in range(len(self.counted) - len(counted)):
            if self._initial_tokens is not None and self.tokens:  # it could have taken one
                self.tokens.popleft()
        self.counted = counted
        first = [] if self._told else [m.name for m in members.values() if m.worker]
        self._told = True
        self.counted += dict.fromkeys(n for n in [*first, *expected, *absent] if n not in self.counted)
        for incarnation in ended:
            self._forget_session(incarnation)
        return self._forget_ended() + self._take_actions()

    def enter_session(self, incarnation: int) -> list[Decision | Grant]:
        """A session wants to begin. It is granted its first local step now, or after the step that is under way."""
        if incarnation not in self.members:
            return []
        if incarnation in self._entered:
            return [Grant(incarnation, 0, self.step, APPLIED)]
        if incarnation not in self._entering:
            self._entering.append(incarnation)
        return self._take_actions()

    def report_push(self, ps: int, incarnation: int, number: int, step: int, refusal: str) -> list[Decision | Grant]:
        """A push is complete on a ps, and sound if `refusal` is "". Its session computed it at local step `step`."""
        if incarnation not in self.members or number < self._next.get(incarnation, 1):
            return []
        reported = self._reports.setdefault((incarnation, number), _Reported(step))
        reported.by[ps] = refusal
        actions: list[Decision | Grant] = []
        number = self._next.get(incarnation, 1)
        while (found := self._reports.get((incarnation, number))) and len(found.by) == len(self.ps):
            del self._reports[incarnation, number]
            self._next[incarnation] = number + 1
            actions += self._accept_push((self.members[incarnation].task, incarnation, number), found)
            number += 1
        return actions + self._take_actions() if actions or self._waiting else actions

    def record_step(self, pushes: Sequence[PushId]) -> None:
        """The next step was made of as many sound pushes as `undisturbed` says, one of each worker. This has the
        effect of `report_push` for all of them, and their tokens are granted."""
        for _, incarnation, number in pushes:
            self._next[incarnation] = number + 1
        self.step, self.chosen = self.step + 1, pushes

    # -- questions --------------------------------------------------------------------------------------------

    @property
    def undisturbed(self) -> int:
        """The number of pushes that make the next step, one of each worker, if nothing is under way; else 0. It changes
        with events alone. While it is not 0, the ended sessions are forgotten, and no push of a member is reported that
        has no result."""
        busy = self._held or self._waiting or self._reports or self._entering or self._excused or self._leaving
        ready = self._usual and self._started and not (busy or self._absent or self.tokens)
        return len(self.counted) if ready else 0

    @property
    def total(self) -> int:
        """The number of replicas that take part now: those of the settings, or the workers, less those that have
        ended."""
        if self.configured_total is None:
            return len(self.counted)
        gone = self._gone + len(self._others_gone)
        return max(1, self.configured_total - gone, min(self.configured_total, self._present()))

    @property
    def aggregate(self) -> int:
        """The number of gradients that make a step."""
        if self.configured_aggregate is None:
            return self.total
        if self._has_several_batches:
            return self.configured_aggregate
        return min(self.configured_aggregate, self.total)

    @property
    def _has_several_batches(self) -> bool:
        most = self.configured_total if self.configured_total is not None else len(self.counted) + self._gone
        return self.configured_aggregate is not None and self.configured_aggregate > most

    def missing(self) -> list[str]:
        """The names of the counted workers from which this step has no push yet."""
        there = {self.members[w.id[1]].name for w in self._waiting if w.id[1] in self.members}
        return [name for name in self.counted if name not in there]

    def shortage(self) -> str:
        """What a step lacks that has fewer workers than it needs, as text; "" if it has enough."""
        if not self._is_short():
            return ""
        gradients, workers = _count(self.aggregate, "gradient"), _count(self._needed(), "worker")
        return f"step {self.step + 1} needs {gradients} from {workers}; this cluster has {self._present()}"

    def has_all(self, incarnation: int, number: int) -> bool:
        """Whether a push of this session is complete on all ps."""
        return number < self._next.get(incarnation, 1)

    def has_pushed(self, incarnation: int) -> bool:
        """Whether a push of this session waits for its step."""
        return any(w.id[1] == incarnation for w in self._waiting)

    # -- how it works -----------------------------------------------------------------------------------------

    def _present(self) -> int:
        """The number of counted workers that have joined."""
        return len({m.name for m in self.members.values()}.intersection(self.counted))

    def _needed(self) -> int:
        """The number of workers that a step needs."""
        return min(self.aggregate, self.total)

    def _is_short(self) -> bool:
        return self._present() < self._needed()

    def _accept_push(self, push: PushId, found: _Reported) -> list[Decision | Grant]:
        refusal = next((found.by[ps] for ps in self.ps if found.by[ps]), "")
        if refusal:
            if found.step >= self.step:
                self._excused.append(push[1])
            self._waiting.append(_Waiting(push, REFUSED, refusal))
            return [Decision(self.step, refused=((push, refusal),))]
        if found.step < self.step:
            self._waiting.append(_Waiting(push, DROPPED))
            return [Decision(self.step, dropped=(push,))]
        self._held.append(push)
        self._waiting.append(_Waiting(push, APPLIED))
        return []

    def _forget_session(self, incarnation: int) -> None:
        self._entered.discard(incarnation)
        self._next.pop(incarnation, None)
        self._entering = [i for i in self._entering if i != incarnation]
        acknowledged = [p for p in self._held if p[1] == incarnation and not any(w.id == p for w in self._waiting)]
        self._held = [p for p in self._held if p[1] != incarnation or p in acknowledged]
        self._leaving.append(incarnation)
        self._excused = [i for i in self._excused if i != incarnation]
        self._waiting = deque(w for w in self._waiting if w.id[1] != incarnation)
        for key in [k for k in self._reports if k[0] == incarnation]:
            del self._reports[key]

    def _forget_ended(self) -> list[Decision | Grant]:
        """Have every ps forget the sessions that ended, except those whose acknowledged pushes are still to be
        applied."""
        ended = [i for i in self._leaving if not any(p[1] == i for p in self._held)]
        self._leaving = [i for i in self._leaving if i not in ended]
        return [Decision(self.step, ended=tuple(ended))] if ended else []

    def _take_actions(self) -> list[Decision | Grant]:
        """Take all actions that are possible now."""
        actions: list[Decision | Grant] = []
        while True:
            self._put_initial_tokens()
            if self._entering:
                actions += self._admit_entering(everybody=not self._held or not self._has_counted_members())
            nobody = self._absent.issuperset(self.counted) and not self._waiting
            if self._held and (nobody or len(self._held) >= max(1, self.aggregate - len(self._excused))):
                actions.append(self._decide_step())
                actions += self._forget_ended()
                continue
            while self.tokens and self._waiting:
                waiting, step = self._waiting.popleft(), self.tokens.popleft()
                actions.append(Grant(waiting.id[1], waiting.id[2], step, waiting.status, waiting.reason))
            if not self._is_standstill():
                return actions
            if not self._held:  # nobody's gradient was taken: all try this step again, with the whole quota
                self._excused = []
                self.tokens.extend([self.step] * len(self._waiting))
            else:
                self._let_more_come()

    def _put_initial_tokens(self) -> None:
        """Called once, before the first push waits for a token. By then the number of workers is known."""
        if not self._started and self._waiting:
            self._started = True
            least = max(0, self.aggregate - self.total)
            self.tokens.extend([self.step] * max(least, self._initial_tokens or 0))

    def _let_more_come(self) -> None:
        """Grant as many tokens as gradients are missing, first to the sessions that have no gradient in the step."""
        held = set(self._held)
        self._waiting = deque(sorted(self._waiting, key=lambda waiting: waiting.id in held))
        missing = self.aggregate - len(self._excused) - len(self._held)
        self.tokens.extend([self.step] * min(len(self._waiting), missing))

    def _decide_step(self) -> Decision:
        self.step += 1
        decision = Decision(self.step, chosen=tuple(sorted(self._held)))
        self.chosen = decision.chosen
        self._held, self._excused = [], []
        self._started = True
        self._add_tokens()
        return decision

    def _add_tokens(self) -> None:
        """Add the tokens of a step that was made."""
        if self._initial_tokens is None:
            self.tokens.clear()
        self.tokens.extend([self.step] * max(self.total, self.aggregate))

    def _admit_entering(self, everybody: bool) -> list[Decision | Grant]:
        """Admit the sessions that want to begin: `everybody` between two steps; otherwise those that the step counts
        on, and as many more as it lacks."""
        granted: list[Decision | Grant] = []
        for incarnation in list(self._entering):
            name = self.members[incarnation].name
            if not everybody and name not in self.counted and not self._is_short():
                continue
            if name not in self.counted:
                self.counted.append(name)
            self._entering.remove(incarnation)
            self._entered.add(incarnation)
            granted.append(Grant(incarnation, 0, self.step, APPLIED))
        return granted

    def _has_counted_members(self) -> bool:
        return any(self.members[i].name in self.counted for i in self._entered)

    def _is_standstill(self) -> bool:
        """All counted workers have joined and wait, and no token is left, so that no worker could ever push again. A
        step that has gradients but fewer workers than it needs waits for more workers."""
        if not self._waiting or self.tokens or not self._absent.issuperset(self.missing()):
            return False
        return not self._held or not self._is_short()


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
