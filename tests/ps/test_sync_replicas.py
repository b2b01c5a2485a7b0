"""With initial tokens, pushes and tokens are TensorFlow's: compared with a model of its SyncReplicasOptimizer."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from dps.ps.modes.quorum import Decision, Grant, Quorum, QuorumMember
from tests.ps.sync_replicas_model import SyncReplicasModel


class Both:
    """The quorum and the model, given the same pushes."""

    def __init__(self, workers: int, aggregate: int, total: int, initial_tokens: int) -> None:
        self.model = SyncReplicasModel(workers, aggregate, total, initial_tokens)
        self.quorum = Quorum([0], 0, aggregate, total, initial_tokens)
        self.value = Fraction(0)
        self.local_step = dict.fromkeys(range(workers), 0)
        self._number = dict.fromkeys(range(workers), 0)
        self._gradients: dict[tuple[int, int], Fraction] = {}
        self.quorum.set_members({1 + w: QuorumMember(w, f"worker:{w}") for w in range(workers)}, [], 0)
        for worker in range(workers):
            self.quorum.enter_session(1 + worker)

    def push(self, worker: int, gradient: Fraction) -> None:
        self._number[worker] += 1
        number = self._number[worker]
        self._gradients[worker, number] = gradient
        actions = self.quorum.report_push(0, 1 + worker, number, self.local_step[worker], "")
        dropped = self._decided(actions)
        grants = [(a.incarnation - 1, a.step) for a in actions if isinstance(a, Grant)]
        self.local_step |= grants
        taken, released = self.model.push(worker, gradient)
        assert taken == ((worker, number) not in dropped)
        assert grants == released
        assert self.model.free(), "as long as nobody leaves, tokens do not run out"
        assert (self.quorum.step, self.value) == (self.model.global_step, self.model.value)
        assert self.local_step == self.model.local_step

    def _decided(self, actions: list[Decision | Grant]) -> set[tuple[int, int]]:
        """Applies the steps that are made; returns what is dropped."""
        decisions = [action for action in actions if isinstance(action, Decision)]
        for decision in decisions:
            if decision.chosen:
                chosen = [self._gradients[worker, number] for worker, _, number in decision.chosen]
                self.value -= sum(chosen, Fraction(0)) / len(chosen)
        return {(worker, number) for decision in decisions for worker, _, number in decision.dropped}


def test_the_run_that_showed_the_difference() -> None:
    """The third push is the first of step 1; TensorFlow gives it, and the three after it, tokens of their time."""
    both = Both(3, 2, 3, initial_tokens=3)
    for worker, tenths in ((0, 2), (2, 10), (1, 30), (0, 10), (1, 20), (2, 6)):
        both.push(worker, Fraction(tenths, 10))
    assert (both.quorum.step, both.value) == (1, Fraction(-6, 10))


@settings(max_examples=150)
@given(
    aggregate=st.integers(1, 5),
    total=st.integers(1, 5),
    away=st.integers(0, 2),
    more=st.integers(0, 6),
    pushes=st.lists(st.tuples(st.integers(0, 4), st.integers(-8, 8)), max_size=80),
)
def test_any_run_is_that_of_the_model(
    aggregate: int, total: int, away: int, more: int, pushes: list[tuple[int, int]]
) -> None:
    """`away`: how many of the replicas have not come; `more`: initial tokens beyond those that the first step needs."""
    workers = max(min(aggregate, total), total - away)
    both = Both(workers, aggregate, total, max(0, aggregate - total) + more)
    for which, gradient in pushes:
        free = both.model.free()
        both.push(free[which % len(free)], Fraction(gradient))
