"""Where versions are committed later than they are published, no answer tells of one before, and none brings it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dps.actors.node import Node
from dps.messages.sessions import Pushed
from dps.ps.serving.reading import ShardReads
from tests.seeds import counts, cut
from tests.simulation.late_commits import CommitGate
from tests.simulation.scenario import run, with_late_commits

SEEDS, QUICK = counts()
MODES = ["async", "at once", "sync", "steps", "bounded"]


class Committed:
    """What each ps has committed, and what left before."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.gates: dict[Node, CommitGate] = {}
        self.early: list[str] = []
        self._inside = False
        """Whether the gate lets an answer out."""
        self.waited = 0
        """How many were given before their version was committed."""
        self._watch_gates(patch)
        for name in ("answer", "answer_now"):
            self._watch(patch, name, lambda message, *_: message)
        self._watch(patch, "answer_plain", lambda form, integers: form.made(*integers))

    def _watch_gates(self, patch: pytest.MonkeyPatch) -> None:
        make: Callable[..., None] = CommitGate.__init__
        keep: Callable[..., None] = CommitGate._keep

        def made(gate: CommitGate, node: Node, *others: Any) -> None:
            make(gate, node, *others)
            self.gates[node] = gate

        def kept(gate: CommitGate, message: Any, leave: Any) -> None:
            published = gate._store.counter
            self.waited += published > gate.committed
            needed = max(published, message.counter if isinstance(message, Pushed) else 0)

            def left() -> None:
                if gate.committed < needed:
                    self.early.append(f"{type(message).__name__}: {needed} is needed, {gate.committed} committed")
                self._inside = True
                try:
                    leave()
                finally:
                    self._inside = False

            keep(gate, message, left)

        patch.setattr(CommitGate, "__init__", made)
        patch.setattr(CommitGate, "_keep", kept)

    def _watch(self, patch: pytest.MonkeyPatch, name: str, message_of: Callable[..., Any]) -> None:
        answer: Callable[..., None] = getattr(Node, name)

        def watched(node: Node, sender: Any, *about: Any) -> None:
            if (gate := self.gates.get(node)) is not None and not self._inside:
                self._check(gate, message_of(*about) if about else None)
            answer(node, sender, *about)

        patch.setattr(Node, name, watched)

    def _check(self, gate: CommitGate, message: Any) -> None:
        """An answer leaves past the gate."""
        published, counter = gate._store.counter, getattr(message, "counter", -1)
        if isinstance(message, Pushed) and message.lent:
            counter = max(counter, message.lent[0])
        if gate.committed < counter <= published or (isinstance(message, Pushed) and counter > gate.committed):
            self.early.append(f"{type(message).__name__} of version {counter}, {gate.committed} is committed")


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Committed:
    return Committed(monkeypatch)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(max(SEEDS // 5, 10), max(QUICK // 5, 4), 25))
@pytest.mark.parametrize("mode", MODES)
def test_nothing_tells_of_a_version_that_is_not_committed(mode: str, seeds: range, committed: Committed) -> None:
    for seed in seeds:
        found = run(with_late_commits(mode, seed))
        assert not found, "\n".join(found)
    assert not committed.early, committed.early[:5]
    assert committed.waited > 20


def _answer_at_once(gate: CommitGate, message: Any, leave: Callable[[], Any]) -> None:
    leave()


def _push_past_the_gate(reads: ShardReads, sender: Any, result: Pushed) -> None:
    reads._shard.node.answer(sender, reads._with_values(sender, result))


@pytest.mark.parametrize(
    ("of", "name", "bug"),
    [(CommitGate, "_keep", _answer_at_once), (ShardReads, "answer_push", _push_past_the_gate)],
    ids=["a gate that is open", "a way past it"],
)
def test_an_answer_that_passes_is_caught(
    of: type, name: str, bug: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of, name, bug)
    committed = Committed(monkeypatch)
    for seed in range(5):
        run(with_late_commits("async", seed))
    assert committed.early
