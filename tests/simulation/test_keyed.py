"""Keyed tables under faults: no key is lost and none twice, in every update mode; and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dps.ps.modes import sync
from dps.ps.modes.combine import combined
from dps.ps.store import expiry, table
from dps.ps.store.expiry import Expiry
from dps.ps.store.index import KeyIndex
from dps.ps.store.key_counts import KeyCounts
from dps.ps.store.table import FoundRows, KeyedTable
from tests.seeds import counts, cut
from tests.simulation import aging
from tests.simulation.scenario import Scenario, run, scenario, summed, with_a_killed_chief, with_a_lost_ps

SEEDS, QUICK = counts(12)
CHUNK = 25


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(SEEDS, QUICK, CHUNK))
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_no_key_is_lost_and_none_twice_under_faults(mode: str, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """With odd seeds sweeps leave most of the expired rows where they are."""
    monkeypatch.setattr(expiry, "LOOKED", 0)
    for seed in seeds:
        monkeypatch.setattr(expiry, "LEAST_LOOKED", 1 if seed % 2 else 1024)
        of = (scenario, scenario, with_a_lost_ps, with_a_killed_chief)[seed % 4]
        found = run(summed(of(mode, seed)), keyed=True)
        assert not found, "\n".join(found)


def caught(mode: str, words: str, of: Callable[[str, int], Scenario] = scenario) -> None:
    """Some seed finds the planted bug, in words of the promise that it breaks."""
    for seed in range(100):
        if any(words in text for text in run(summed(of(mode, seed)), keyed=True)):
            return
    raise AssertionError(f"no seed noticed that {words!r}")


def test_rows_that_a_restore_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable.load_rows

    def load_fewer(self: KeyedTable, codes: Any, values: Any, slots: Any, stamps: Any) -> None:
        slots = [(name, rows[:-1]) for name, rows in slots]
        real(self, codes[:-1], values[:-1], slots, stamps[:-1] if self.part.spec.expire_steps else stamps)

    monkeypatch.setattr(KeyedTable, "load_rows", load_fewer)
    caught("async", "wanted", with_a_lost_ps)


def test_a_key_that_gets_its_row_when_its_push_arrives_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable.check_codes

    def check_and_add(self: KeyedTable, codes: Any) -> Any:
        found = real(self, codes)
        new = np.unique(found[self._index.find(found) < 0])
        if new.size:
            self._add_rows(new)
        return found

    monkeypatch.setattr(KeyedTable, "check_codes", check_and_add)
    caught("sync", "wanted")


def test_a_row_that_begins_with_another_value_than_was_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable._add_rows

    def add_and_shift(self: KeyedTable, codes: Any) -> Any:
        numbers = real(self, codes)
        self._values[numbers[-1:]] += 0.25
        return numbers

    monkeypatch.setattr(KeyedTable, "_add_rows", add_and_shift)
    caught("bounded", "a keyed table")


def test_rows_that_are_updated_outside_of_their_step_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def combined_without_counts(pushes: Any, layout: Any, reduction: str) -> Any:
        found = combined(pushes, layout, reduction)
        keyed = {part.index for part in layout.tables}
        more = {i: g for push in pushes[:1] for i, g in push.parts.items() if i in keyed}
        return replace(found, parts={**found.parts, **more})

    monkeypatch.setattr(sync, "combined", combined_without_counts)
    caught("sync", "wanted")


# -- admission --------------------------------------------------------------------------------------------------

OF_AGING = f"{aging.NAME} on ps"


def test_counts_that_a_restore_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyCounts, "load", lambda self, codes, counts: None)
    caught("async", OF_AGING, with_a_lost_ps)


def test_a_step_that_counts_as_one_push_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "pushes_of", lambda gradient: np.ones(gradient.rows.size, np.int64))
    caught("sync", OF_AGING)


def test_keys_that_count_when_they_arrive_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable.check_codes

    def check_and_count(self: KeyedTable, codes: Any) -> Any:
        found = np.unique(real(self, codes))
        if self.key_counts is not None:
            self.key_counts.count(found, np.ones(found.size, np.int64))
        return real(self, codes)

    monkeypatch.setattr(KeyedTable, "check_codes", check_and_count)
    caught("bounded", OF_AGING)


def test_an_admitted_key_whose_first_sum_is_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable._add_rows

    def add_and_shift(self: KeyedTable, codes: Any) -> Any:
        numbers = real(self, codes)
        if self.key_counts is not None:
            self._values[numbers] -= 1
        return numbers

    monkeypatch.setattr(KeyedTable, "_add_rows", add_and_shift)
    caught("async", OF_AGING)


# -- expiry -----------------------------------------------------------------------------------------------------

LONG_AGO = -(10**9)
"""A step at which nothing has expired."""


def test_lookups_that_show_expired_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable.rows_to_read
    monkeypatch.setattr(KeyedTable, "rows_to_read", lambda self, codes, now: real(self, codes, LONG_AGO))
    caught("sync", OF_AGING)


def test_pushes_that_go_on_with_expired_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable.apply

    def apply_to_old(self: KeyedTable, gradient: Any, step: int, scale: float, now: int) -> None:
        real(self, gradient, step, scale, LONG_AGO)

    monkeypatch.setattr(KeyedTable, "apply", apply_to_old)
    caught("async", OF_AGING)


def test_lookups_that_renew_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable.rows_to_read

    def find_and_renew(self: KeyedTable, codes: Any, now: int) -> Any:
        found = real(self, codes, now)
        if self._expiry is not None:
            self._expiry.stamp_rows(found[found >= 0], now)
        return found

    monkeypatch.setattr(KeyedTable, "rows_to_read", find_and_renew)
    caught("bounded", OF_AGING)


def test_stamps_that_a_restore_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeyedTable.load_rows

    def load_younger(self: KeyedTable, codes: Any, values: Any, slots: Any, stamps: Any) -> None:
        real(self, codes, values, slots, stamps + 1)

    monkeypatch.setattr(KeyedTable, "load_rows", load_younger)
    caught("async", OF_AGING, with_a_lost_ps)


def test_pushes_that_expire_rows_a_step_late_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Expiry.has_expired
    monkeypatch.setattr(Expiry, "has_expired", lambda self, rows, now: real(self, rows, now - 1))
    caught("sync", OF_AGING)


# -- sweeping ---------------------------------------------------------------------------------------------------


def test_rows_that_are_swept_a_step_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Expiry.sweep
    monkeypatch.setattr(Expiry, "sweep", lambda self, now, pushed: real(self, now + 2, pushed))
    caught("async", OF_AGING)


def test_keys_that_stay_when_their_rows_are_swept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyIndex, "remove", lambda self, keys: np.zeros(keys.size, np.int64))
    caught("async", OF_AGING)


def test_rows_that_were_found_before_a_sweep_and_are_used_after_it_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FoundRows, "forget_lists", lambda self: None)
    caught("async", OF_AGING, with_a_lost_ps)


def test_rows_that_are_given_to_two_keys_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Expiry.free_rows

    def free_twice(self: Expiry, rows: Any) -> None:
        real(self, rows)
        real(self, rows[:1])

    monkeypatch.setattr(Expiry, "free_rows", free_twice)
    caught("async", OF_AGING)
