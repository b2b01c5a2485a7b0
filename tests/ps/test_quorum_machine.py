"""Random events on a quorum of one to three ps: its invariants hold, and it stands still only where workers lack."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dps.messages.sessions import APPLIED, DROPPED, REFUSED
from dps.ps.modes.quorum import Decision, Grant, Quorum, QuorumMember

Report = tuple[int, int, int, int, str]
"""ps, incarnation, number, local step, refusal."""


class Model:
    """Workers that push when they may, reports that arrive in any order and more than once, and what must hold."""

    def __init__(self, ps: int, workers: int, expected: int, settings: dict[str, Any]) -> None:
        self.ps, self.quorum, self.gone = ps, Quorum(range(ps), 0, **settings), 0
        self.expected = [f"worker:{workers + i}" for i in range(expected)]
        self.aggregate, self.total = settings["aggregate"], settings["total"]
        self.initial = settings["initial_tokens"]
        self.queue: deque[int] = deque()
        """With initial tokens: the values of all that are left."""
        self.started = False
        self.counted: set[str] = set(self.expected)
        """Workers that a step waits for."""
        self.came: set[str] = set()
        self.absent: list[str] = []
        self.entered: set[int] = set()
        self.refused = 0
        """Gradients for the step of now that were refused."""
        self.members: dict[int, QuorumMember] = {}
        self.local: dict[int, int] = {}
        self.number: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.following = 10
        self.pending: list[Report] = []
        self.reported: dict[tuple[int, int], dict[int, str]] = {}
        self.steps = 0
        self.decided_at: dict[tuple[int, int], int] = {}
        self.chosen: set[tuple[int, int]] = set()
        self.granted: dict[tuple[int, int], str] = {}
        self.ended: set[int] = set()
        self.grants_this_step = self.most = self.at_freeze = 0
        for index in range(workers):
            self.join(f"worker:{index}", index)

    # -- events -----------------------------------------------------------------------------------------------

    def join(self, name: str, task: int) -> None:
        incarnation, self.following = self.following, self.following + 1
        self.members[incarnation] = QuorumMember(task, name)
        self.expected = [n for n in self.expected if n != name]
        self.absent = [n for n in self.absent if n != name]
        self.came.add(name)
        self.number[incarnation], self.local[incarnation] = 0, -1
        self.waiting.add(incarnation)
        self.tell()
        self.take(self.quorum.enter_session(incarnation))

    def tell(self) -> None:
        self.counted |= set(self.expected)
        ended = self.counted - {*self.expected, *self.absent, *(m.name for m in self.members.values())}
        self.counted -= ended
        for _ in ended:
            if self.queue:
                self.queue.popleft()
        self.take(self.quorum.set_members(self.members, self.expected, self.gone, self.absent))

    def join_next(self) -> None:
        if self.expected or self.absent:
            name = [*self.expected, *self.absent][0]
            self.join(name, int(name.split(":")[1]))
        else:
            self.join(f"worker:{self.following}", self.following)

    def push(self, which: int, refusal: str, stale: bool) -> None:
        free = [i for i in self.members if i not in self.waiting]
        if free:
            incarnation = free[which % len(free)]
            self.number[incarnation] += 1
            self.waiting.add(incarnation)
            step = max(0, self.local[incarnation] - stale)
            refusing = which % self.ps
            for ps in range(self.ps):
                report = (ps, incarnation, self.number[incarnation], step, refusal if ps == refusing else "")
                self.pending.append(report)

    def deliver(self, which: int, again: bool = False) -> None:
        if self.pending:
            report = self.pending[which % len(self.pending)]
            if not again:
                self.pending.remove(report)
            ps, incarnation, number, step, refusal = report
            if incarnation in self.members:
                by = self.reported.setdefault((incarnation, number), {})
                by[ps] = refusal
                if len(by) == self.ps:
                    self.decided_at.setdefault((incarnation, number), step)
                    self.put_initial_tokens()
            self.take(self.quorum.report_push(ps, incarnation, number, step, refusal))

    def put_initial_tokens(self) -> None:
        if not self.started and self.initial is not None:
            aggregate, total = self.quota()
            self.queue.extend([0] * max(self.initial, aggregate - total))
        self.started = True

    def leave(self, which: int, comes_back: bool) -> None:
        if self.members:
            incarnation = list(self.members)[which % len(self.members)]
            member = self.members.pop(incarnation)
            self.waiting.discard(incarnation)
            self.gone += not comes_back
            self.expected += [member.name] if comes_back else []
            self.tell()

    def give_up(self) -> None:
        """Those that came before were lost; the others never came."""
        self.gone += len(self.came.intersection(self.expected))
        self.absent += [name for name in self.expected if name not in self.came]
        self.expected = []
        self.tell()

    # -- what must hold -----------------------------------------------------------------------------------------

    def quota(self) -> tuple[int, int]:
        """Gradients that make a step, with the refused ones, and replicas that take part."""
        there = len(self.entered & self.members.keys())
        workers = there + len({*self.expected, *self.absent} - {self.members[i].name for i in self.members})
        total = workers if self.total is None else max(1, self.total - self.gone, min(self.total, there))
        if self.aggregate is None:
            return total, total
        several = self.aggregate > (workers + self.gone if self.total is None else self.total)
        return (self.aggregate if several else min(self.aggregate, total)), total

    def lacks_workers(self) -> bool:
        return len(self.members) < min(self.quota())

    def take(self, actions: list[Decision | Grant]) -> None:
        going_on = [i for i in self.members if i not in self.waiting]
        self.most = max(self.most, self._tokens())
        for action in actions:
            if isinstance(action, Decision):
                self._decision(action)
            else:
                self._grant(action)
        if self.initial is None and self.grants_this_step > self.most:
            assert not going_on, "more tokens than max(total, aggregate), and it was no standstill"
            self.most = self.grants_this_step
        self.at_freeze = max(self.quorum.aggregate, self.quorum.total)

    def _tokens(self) -> int:
        """How many tokens the step that is under way may hand out."""
        aggregate, total = self.quorum.aggregate, self.quorum.total
        if not self.steps:
            return max(0, aggregate - total, self.quorum._initial_tokens or 0)
        return max(aggregate, total)

    def _decision(self, decision: Decision) -> None:
        if decision.chosen:
            if self.members or self.expected:  # else what was acknowledged is applied
                assert len(decision.chosen) >= self.quota()[0] - self.refused, "a step below its quota"
            self.steps += 1
            self.grants_this_step = self.refused = 0
            self.most = max(self._tokens(), self.at_freeze)  # who enters with the step changes both numbers after it
            if self.initial is not None:
                self.queue.extend([self.steps] * max(self.quota()))
        assert decision.step == self.steps
        assert list(decision.chosen) == sorted(decision.chosen)
        for _, incarnation, number in decision.chosen:
            push = (incarnation, number)
            assert push not in self.chosen, "a push is in two sets"
            assert incarnation not in self.ended, "a push of a session that is forgotten"
            assert len(self.reported[push]) == self.ps, "a push that is not whole on every ps"
            assert not any(self.reported[push].values()), "a refused push"
            assert self.decided_at[push] >= self.steps - 1, "a push that is older than its step"
            self.chosen.add(push)
        for (_, incarnation, number), reason in decision.refused:
            assert reason in self.reported[incarnation, number].values()
            self.refused += 1
        assert not self.ended & set(decision.ended)
        assert not self.members.keys() & set(decision.ended)
        self.ended |= set(decision.ended)

    def _grant(self, grant: Grant) -> None:
        queued = self.queue.popleft() if grant.number and self.queue else self.steps
        assert grant.step == queued, "not the oldest token, or not the current step"
        assert grant.incarnation in self.waiting, "a grant for nobody who waits"
        self.waiting.discard(grant.incarnation)
        self.local[grant.incarnation] = grant.step
        if not grant.number:
            self.entered.add(grant.incarnation)
            self.counted.add(self.members[grant.incarnation].name)
            return
        push = (grant.incarnation, grant.number)
        assert grant.number == self.number[grant.incarnation] and push not in self.granted
        self.granted[push] = grant.status
        refused = any(self.reported[push].values())
        assert refused == (grant.status == REFUSED)
        assert grant.status != DROPPED or push not in self.chosen
        self.grants_this_step += 1

    def nobody_stands_still(self) -> None:
        """With all reports there and nobody expected, somebody may push; and steps go on when all push well. A step
        that takes more workers than there are waits for them, and says so."""
        while self.pending:
            self.deliver(0)
        self.give_up()
        while self.members and self.lacks_workers():
            gradients, workers = self.quota()[0], min(self.quota())
            wanted = f"step {self.steps + 1} needs {gradients} gradients from {workers} workers; this cluster has "
            assert self.quorum.shortage() == wanted + str(len(self.members))
            self.join_next()
        assert not self.members or not self.quorum.shortage()
        assert not self.members or len(self.waiting) < len(self.members), "everybody waits"
        before = self.steps
        old = len(self.queue)  # tokens of earlier steps, with which pushes are dropped
        for _ in range(4 * (1 + self.quorum.aggregate) + old):
            for which in range(len(self.members)):
                self.push(which, "", False)
            while self.pending:
                self.deliver(0)
        assert not self.members or self.steps >= before + 2

    def all_leave(self) -> None:
        while self.members:
            self.leave(0, False)
        assert not self.expected
        acknowledged = {push for push, status in self.granted.items() if status == APPLIED}
        assert acknowledged <= self.chosen, "an acknowledged push was never applied"
        assert self.ended == set(range(10, self.following)), "a session that ended is not forgotten"


EVENT = st.tuples(
    st.sampled_from(
        ["push"] * 5 + ["deliver"] * 8 + ["twice", "refuse", "stale", "leave", "crash", "join", "give up", "all"]
    ),
    st.integers(0, 11),
)


@settings(max_examples=150)
@given(
    ps=st.integers(1, 3),
    workers=st.integers(1, 4),
    expected=st.integers(0, 2),
    aggregate=st.none() | st.integers(1, 6),
    total=st.none() | st.integers(1, 5),
    initial=st.none() | st.integers(0, 6),
    events=st.lists(EVENT, max_size=60),
)
def test_random_events_break_no_invariant_and_reach_no_standstill(
    ps: int, workers: int, expected: int, aggregate: int | None, total: int | None, initial: int | None,
    events: list[tuple[str, int]],
) -> None:  # fmt: skip
    model = Model(ps, workers, expected, {"aggregate": aggregate, "total": total, "initial_tokens": initial})
    for what, which in events:
        match what:
            case "push" | "stale":
                model.push(which, "", what == "stale")
            case "refuse":
                model.push(which, "NaN", False)
            case "deliver" | "twice":
                model.deliver(which, what == "twice")
            case "leave" | "crash":
                model.leave(which, what == "crash")
            case "join":
                model.join_next()
            case "give up":
                model.give_up()
            case "all":
                while model.pending:
                    model.deliver(which)
    model.nobody_stands_still()
    model.all_leave()
