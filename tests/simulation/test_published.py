"""Published versions under faults: never a mixture, never a number twice; and planted faults that the checker finds."""

from __future__ import annotations

from typing import Any

import pytest

from dps.actors import standing
from dps.chief import epochs, takeover
from dps.ps.modes import holding, sync
from tests.seeds import cut
from tests.simulation.published import MODES, run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(100, 4, 24))
@pytest.mark.parametrize("mode", list(MODES))
def test_a_published_version_is_one_cut_under_a_number_of_its_own(mode: str, seeds: range) -> None:
    for seed in seeds:
        found = run(mode, seed)
        assert not found, "\n".join(found)


def caught(mode: str, words: str) -> None:
    assert any(any(words in text for text in run(mode, seed)[:-1]) for seed in range(60)), f"nobody noticed {words!r}"


def test_a_shard_that_is_cut_late_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: sync.SyncMode, decision: Any, cut: str) -> None:
        carry_out(self, decision, "" if self.quorum is None else cut)
        if cut and self.quorum is None:
            self.shard.node.after(0.3, lambda: None if self.shard.ended else self.shard.make_copy(cut))

    carry_out: Any = sync.SyncMode._carry_out_one
    monkeypatch.setattr(sync.SyncMode, "_carry_out_one", late)
    caught("sync", "is a mixture")


def test_a_cut_that_holds_no_pushes_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding.HeldPushes, "may_apply", lambda self, ledger: True)
    monkeypatch.setattr(holding.HeldPushes, "set_limits", lambda self, numbers, sender: setattr(self, "_is_told", True))
    caught("async", "is a mixture")


def test_a_session_that_tells_less_than_it_has_sent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(self: standing.Standing) -> list[list[Any]]:
        return [[number, incarnation, []] for number, incarnation, _ in sent(self)]

    sent: Any = standing.Standing.sent
    monkeypatch.setattr(standing.Standing, "sent", short)
    caught("bounded", "is a mixture")


def test_a_number_that_is_used_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: epochs.Epochs) -> str:
        self._members.published = 0
        return ""

    monkeypatch.setattr(epochs.Epochs, "_journal_problem", forgets)
    monkeypatch.setattr(takeover.Takeover, "versions", lambda self, plan: (0, []))
    caught("async", "numbers went back")
