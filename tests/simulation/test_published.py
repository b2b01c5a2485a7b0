"""Published versions under faults: never a mixture, never a number twice; and planted faults that the checker finds."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from dps.actors import standing
from dps.chief import epochs, takeover
from dps.client import follower
from dps.client import publishing as calls
from dps.ps.modes import holding, sync
from dps.ps.serving import published
from dps.transport.message import changed
from tests.seeds import cut
from tests.simulation.published import MODES, run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(14, 2, 12, nightly=12))
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
            self.shard.node.after(0.3, lambda: None if self.shard.ended else self.shard.perform_cut(cut))

    carry_out: Any = sync.SyncMode._carry_out_one
    monkeypatch.setattr(sync.SyncMode, "_carry_out_one", late)
    caught("sync", "is a mixture")


@pytest.mark.nightly
def test_a_cut_that_holds_no_pushes_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding.HeldPushes, "may_apply", lambda self, ledger: True)
    monkeypatch.setattr(holding.HeldPushes, "set_limits", lambda self, numbers, sender: setattr(self, "_is_told", True))
    caught("async", "is a mixture")


@pytest.mark.slow
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


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_ps_that_serves_what_it_has_in_place_of_what_was_asked_for_is_caught(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newest(self: published.PublishedVersions, sender: Any, pull: Any, packed: Any) -> None:
        number = max(self._kept, default=pull.published)
        answer(self, sender, changed(pull, published=number if self._shard.is_step_ps else pull.published), packed)

    answer: Any = published.PublishedVersions.answer_pull
    monkeypatch.setattr(published.PublishedVersions, "answer_pull", newest)
    monkeypatch.setattr(published.PublishedVersions, "drop_older", lambda self, number: None)
    caught(mode, "had several values")


@pytest.mark.nightly
def test_a_follower_that_goes_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeps_all(self: follower.Follower, session: Any) -> None:
        self._ready = deque(self._ready)  # `swap` takes the newest first
        follow_run(self, session)

    follow_run: Any = follower.Follower._follow_run
    monkeypatch.setattr(follower.Follower, "_follow_run", keeps_all)
    caught("sync", "the follower went back")


def test_a_follower_that_mixes_up_its_bases_is_caught_without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    def values(self: Any) -> Any:
        bases = dict(self._bases)
        found = values_of(self)
        for ps, (_, form, data) in bases.items():
            self._bases[ps] = self._number, form, data
        return found

    values_of: Any = calls._VersionPull.values
    for module in (calls, published):
        monkeypatch.setattr(module, "crc32", lambda data: 7)
    monkeypatch.setattr(calls._VersionPull, "values", values)
    caught("sync", "had several values")
