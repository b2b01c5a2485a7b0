"""Ps that are told to end while pushes are on their way."""

from __future__ import annotations

import pytest

from dps.chief import epoch
from dps.chief import takeover as kept
from tests.seeds import chunks
from tests.simulation.leaving import broken


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
@pytest.mark.parametrize("seeds", chunks(12))
def test_a_push_says_what_was_applied_when_a_ps_is_told_to_end(seeds: range, mode: str) -> None:
    for seed in seeds:
        found = broken(mode, seed)
        assert not found, "\n".join(found)


def found(mode: str, words: str) -> bool:
    """Whether one of 60 seeds notices, in these words."""
    return any(words in text for seed in range(60) for text in broken(mode, seed))


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_a_chief_that_does_not_say_what_was_kept_is_found(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept.AppliedPushes, "pushes_of", lambda self, incarnation: [])
    assert found(mode, "of its pushes; it was told of")


@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_a_ps_that_leaves_before_pushes_are_completed_is_found(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch.Epoch, "may_have_halves", False)
    assert found(mode, "pushes that every session could have completed")
