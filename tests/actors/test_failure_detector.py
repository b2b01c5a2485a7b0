"""Who is away, as a state machine: a grace, a loss told once, and what a watcher that stood still forgives."""

from __future__ import annotations

import math

import hypothesis.strategies as st
from hypothesis import given

from dps.actors.failure_detector import FailureDetector

A, B = "127.0.0.1:1", "127.0.0.1:2"


def test_an_address_that_never_connects_is_lost_after_its_grace() -> None:
    watch = FailureDetector()
    watch.add(A, grace_s=1.0, now=10.0)
    assert watch.next_at() == 11.0
    assert watch.take_lost(10.9) == []
    assert watch.take_lost(11.5) == [(A, 1.5)]


def test_a_loss_is_told_once_until_the_address_was_back() -> None:
    watch = FailureDetector()
    watch.add(A, 1.0, 0.0)
    watch.note_connected(A)
    watch.note_disconnected(A, 5.0)
    watch.note_disconnected(A, 5.9)  # still away since 5
    assert watch.take_lost(6.0) == [(A, 1.0)] and watch.take_lost(20.0) == [] and watch.next_at() == math.inf
    assert watch.note_connected(A)
    watch.note_disconnected(A, 30.0)
    assert watch.take_lost(31.0) == [(A, 1.0)]


def test_who_is_back_within_the_grace_was_never_lost() -> None:
    watch = FailureDetector()
    watch.add(A, 1.0, 0.0)
    watch.note_connected(A)
    watch.note_disconnected(A, 5.0)
    watch.note_connected(A)
    assert watch.take_lost(100.0) == [] and watch.next_at() == math.inf


def test_each_address_has_its_own_grace() -> None:
    watch = FailureDetector()
    watch.add(A, 1.0, 0.0)
    watch.add(B, 3.0, 0.0)
    assert watch.take_lost(2.0) == [(A, 2.0)] and watch.next_at() == 3.0 and watch.take_lost(3.0) == [(B, 3.0)]


def test_strangers_and_those_no_longer_watched_are_nobodys_business() -> None:
    watch = FailureDetector()
    watch.add(A, 1.0, 0.0)
    watch.remove(A)
    watch.remove(B)
    watch.note_disconnected(B, 0.0)
    assert not watch.note_connected(A) and not watch.is_watched(A) and watch.take_lost(50.0) == []


def test_watching_twice_changes_nothing() -> None:
    watch = FailureDetector()
    watch.add(A, 1.0, 0.0)
    watch.add(A, 9.0, 5.0)
    assert watch.take_lost(1.0) == [(A, 1.0)]


def test_the_time_that_the_watcher_itself_stood_still_is_forgiven() -> None:
    watch = FailureDetector()
    watch.add(A, 1.0, 0.0)
    watch.add(B, 1.0, 0.0)
    watch.note_connected(B)
    watch.excuse_delay(2.0, now=2.1)  # A had been away for 0.1 s when the watcher stopped
    assert watch.take_lost(2.5) == [] and watch.next_at() == 3.0
    assert watch.take_lost(3.0) == [(A, 1.0)]


def test_forgiving_makes_nobody_away_in_the_future_and_brings_back_nobody_who_is_lost() -> None:
    watch = FailureDetector()
    watch.add(A, 1.0, 0.0)
    watch.excuse_delay(60.0, now=0.5)
    assert watch.next_at() == 1.5
    assert watch.take_lost(1.5) == [(A, 1.0)]
    watch.excuse_delay(60.0, now=2.0)
    assert watch.take_lost(100.0) == []


def test_a_watcher_that_was_stopped_gives_others_the_time_that_silence_takes() -> None:
    watch = FailureDetector(silence_s=5.0)
    for address in (A, B):
        watch.add(address, 1.0, 0.0)
        watch.note_connected(address)
    watch.note_disconnected(A, 1.9)
    watch.excuse_stop(2.0)
    watch.note_disconnected(B, 2.1)  # its connection ended while nobody could hear a heartbeat
    assert watch.take_lost(7.9) == [] and watch.next_at() == 8.0
    watch.note_connected(B)
    assert watch.take_lost(8.0) == [(A, 1.0)]
    watch.note_disconnected(B, 9.0)
    assert watch.take_lost(10.0) == [(B, 1.0)]


def test_nobody_who_was_told_lost_is_told_again_after_a_stop() -> None:
    watch = FailureDetector(silence_s=5.0)
    watch.add(A, 1.0, 0.0)
    assert watch.take_lost(1.0) == [(A, 1.0)]
    watch.excuse_stop(2.0)
    assert watch.take_lost(100.0) == [] and watch.next_at() == math.inf


@given(st.lists(st.tuples(st.sampled_from(["up", "down", "wait", "forgive"]), st.floats(0.01, 2.0)), max_size=30))
def test_nobody_is_lost_who_was_not_away_for_the_whole_grace(events: list[tuple[str, float]]) -> None:
    watch, now, away_since, told = FailureDetector(), 0.0, 0.0, False
    watch.add(A, 1.0, 0.0)
    there = False
    for what, seconds in events:
        if what == "up":
            watch.note_connected(A)
            there, told = True, False
        elif what == "down":
            watch.note_disconnected(A, now)
            if there:
                there, away_since = False, now
        elif what == "forgive":
            watch.excuse_delay(seconds, now)
        else:
            now += seconds
        for _, silent_s in watch.take_lost(now):
            assert not there and not told and now - away_since >= 1.0 - 1e-9 and silent_s <= now - away_since + 1e-9
            told = True
