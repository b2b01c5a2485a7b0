"""An intake against the simple way: gather all of a push, check all of it, apply it in one pass."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps import optim
from dps.client.cargo import About, run_pieces, shared_message
from dps.errors import ProtocolError
from dps.messages.sessions import Push
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.intake import Applying, Gathering, Intake, IntakeState, Keeping, PushOf, Staged
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.receiving import receive
from dps.ps.store.draft import Draft
from dps.ps.store.gradients import Gradient
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import VariableSpec, make_plan

SGD = optim.SGD(0.5).to_wire()
SPECS = [
    VariableSpec("a", (4, 2), "<f4", SGD), VariableSpec("n", (2,), "<i8", None), VariableSpec("b", (5,), "<f8", SGD),
    VariableSpec("c", (3,), "<f4", SGD),
]  # fmt: skip
LAYOUT = make_plan(SPECS, (0,), lambda *_: 0, None).layouts[0]
TRAINED = [index for index, spec in enumerate(SPECS) if spec.optimizer is not None]
KINDS = ["gathering", "keeping", "applying", "let go"]
ABOUT = About(1, 1, 0, -1)


def gradient(bad: tuple[int, int] | None) -> Any:
    """A run of small numbers; `bad`: the part and the element of it that is NaN."""
    run = np.zeros(LAYOUT.nbytes, np.uint8)
    views = LAYOUT.views(run)
    for index in TRAINED:
        views[index][...] = np.arange(views[index].size).reshape(views[index].shape) + index + 1
    if bad is not None:
        part, element = bad
        views[part].reshape(-1)[element % views[part].size] = np.nan
    return run


class Reference:
    """What must be known of the push after each message, by the plainest rules."""

    def __init__(self, run: Any) -> None:
        self.run, self.here, self.bad = run, set[tuple[int, int]](), False

    def takes(self, ranges: list[tuple[int, int]], loses: bool) -> str:
        """`loses`: a new piece finds that those before were let go for nothing."""
        for offset, nbytes in ranges:
            if (offset, nbytes) in self.here:
                continue
            if any(offset < at + n and at < offset + nbytes for at, n in self.here):
                return "wrong"
            self.here.add((offset, nbytes))
            self.bad |= self.is_bad(offset, nbytes)
            if loses and not self.bad:
                return "lost"
        return "complete" if sum(n for _, n in self.here) == LAYOUT.gradient_nbytes else "arriving"

    def is_bad(self, offset: int, nbytes: int) -> bool:
        number, start = LAYOUT.check_range(offset, nbytes)
        stop = start + nbytes // LAYOUT.arenas[number].itemsize
        return not bool(np.isfinite(LAYOUT.flats(self.run)[number][start:stop]).all())


class Road:
    """One push to a store, and the same pushes applied the simple way to its twin."""

    def __init__(self, data: Any, bad: tuple[int, int] | None) -> None:
        self.data, self.run = data, gradient(bad)
        self.store, self.twin = Store(LAYOUT, runtime()), Store(LAYOUT, runtime())
        self.ledger = Ledger(0, 1, "worker:0", Borrowed(runtime(), lambda: True))
        self.reference = Reference(self.run)
        self.draft: Draft | None = None
        self.lets_go = False

    def begin(self, push: PushOf) -> Intake:
        kind = self.data.draw(st.sampled_from(KINDS))
        self.draft, self.lets_go = None, kind == "let go"
        if kind in ("gathering", "keeping"):
            return (Gathering if kind == "gathering" else Keeping)(push, LAYOUT, True)
        self.draft = self.store.open_draft(self.store.step + 1, reversible=True)
        assert self.draft is not None
        return Applying(push, LAYOUT, True, self.draft, self.lets_go)

    def comes(self, message: Push) -> None:
        """A message with pieces, whose outcome is the reference's."""
        ranges = [(offset, array.nbytes) for offset, array in zip(message.offsets, message.arrays, strict=True)]
        over = 1 in self.ledger.arriving and self.draft is not None and not self.draft.is_valid
        wanted = self.reference.takes(ranges, over and self.lets_go)
        if wanted == "wrong":
            with pytest.raises(ProtocolError, match="cut otherwise"):
                receive(message, self.ledger, LAYOUT, True, self.begin, {})
            return
        came = receive(message, self.ledger, LAYOUT, True, self.begin, {})
        if wanted == "complete":
            assert isinstance(came, Staged) and self.ledger.is_complete(1) and not self.ledger.arriving
            return
        assert isinstance(came, Intake) and came.state.value == wanted and not self.ledger.is_complete(1)
        assert (1 in self.ledger.arriving) == (wanted == "arriving")
        if wanted == "lost":
            self.reference = Reference(self.run)

    def lost(self) -> None:
        """Its credit has expired: what came is forgotten."""
        self.ledger.discard_push(1)
        self.reference = Reference(self.run)

    def other(self) -> None:
        """Another session's push is applied."""
        for store in (self.store, self.twin):
            assert store.apply_update(Gradient(LAYOUT.flats(gradient(None)), {}), store.step + 1) == ""

    def applied(self) -> bool:
        """The push is applied as its staged form wants it; whether it was."""
        staged = self.ledger.staged[1]
        draft, staged.draft = staged.draft, None
        if draft is not None:
            if draft.is_valid and not staged.problem:
                draft.publish()
                return True
            draft.drop()
        if staged.problem:
            return False
        return self.store.apply_update(staged.sound(), self.store.step + 1) == ""


@settings(max_examples=150, deadline=None)
@given(
    st.data(), st.integers(8, 60), st.one_of(st.none(), st.tuples(st.sampled_from(TRAINED), st.integers(0, 20))),
)  # fmt: skip
def test_whatever_comes_the_push_is_applied_as_the_simple_way_does_it(
    data: Any, size: int, bad: tuple[int, int] | None
) -> None:
    road = Road(data, bad)
    memory = runtime().share(LAYOUT.nbytes)
    memory.array[:] = road.run
    pieces, (whole,) = run_pieces(LAYOUT, road.run, size, ABOUT), shared_message(LAYOUT, memory.name, ABOUT)
    cut_otherwise = run_pieces(LAYOUT, road.run, size // 2, ABOUT)
    happens = [st.sampled_from([*pieces, *pieces, *pieces, *cut_otherwise]), st.sampled_from(["other", "lost"])]
    for event in data.draw(st.lists(st.one_of(happens[0], *happens), max_size=25)):
        if road.ledger.is_complete(1) and road.lets_go:
            break  # such a push is applied in the event that completes it: it is the next of its session
        if event == "other":
            road.other()
        elif event == "lost":
            road.lost()
        elif not road.ledger.is_complete(1):
            road.comes(event)
    while not road.ledger.is_complete(1):  # the sender begins again until all is here
        if data.draw(st.booleans()):
            assert isinstance(receive(whole, road.ledger, LAYOUT, True, road.begin, {}), Staged)
        else:
            road.lost()
            for piece in data.draw(st.permutations(pieces)):
                road.comes(piece)
    problem = road.twin.apply_update(Gradient(LAYOUT.flats(road.run), {}, checked=False), road.twin.step + 1)
    assert road.applied() == (problem == "") == (bad is None)
    assert (road.store.counter, road.store.step) == (road.twin.counter, road.twin.step)
    for ours, theirs in zip(road.store.arenas, road.twin.arenas, strict=True):
        assert ours.values.tobytes() == theirs.values.tobytes()
        assert not any(buffer.drafted for buffer in ours.buffers)


def test_an_intake_that_was_dropped_has_given_its_buffers_back() -> None:
    store = Store(LAYOUT, runtime())
    draft = store.open_draft(1, reversible=True)
    assert draft is not None
    intake = Applying(PushOf(0, 1, 1, 0), LAYOUT, True, draft, lets_go=True)
    piece, *_ = run_pieces(LAYOUT, gradient(None), 16, ABOUT)
    assert intake.take_pieces(piece) is IntakeState.ARRIVING
    intake.drop()
    assert intake.state is IntakeState.LOST and store.counter == 0
    assert not any(buffer.drafted for memory in store.arenas for buffer in memory.buffers)
