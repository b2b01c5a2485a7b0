"""Packed values of a shard: made once for each form of a version, and bounded in number."""

from __future__ import annotations

import numpy as np

from dps.ps.serving.packing import Packing
from dps.variables.deltas import patch
from dps.variables.packed import PackedLayout
from tests.ps.test_store import run_of, store


def test_a_form_is_made_once_for_a_version_and_few_forms_are_kept() -> None:
    made = store()
    packing, tuning = Packing(made), made.runtime.tuning.serving
    forms = [PackedLayout(made.layout, wanted, []) for wanted in ([], [0], [1], [2], [3], [4], [0, 1])]
    assert len(forms) > tuning.packed_ways
    for form in forms:
        first = packing.pack_values(form)
        assert packing.pack_values(form) is first and len(first) == form.nbytes
        assert len(packing._made) <= tuning.packed_ways
    made.apply_update(run_of(made, -1.0), 1)
    assert packing.pack_values(form) is not first and len(packing._made) == 1


def test_changes_are_those_from_a_version_that_is_kept() -> None:
    made = store()
    packing, form = Packing(made), PackedLayout(made.layout, [0, 2], [])
    versions = []
    for step in range(made.runtime.tuning.serving.packed_versions + 1):
        versions.append(packing.pack_values(form, keep=True).copy())
        made.arenas[0].values[step % 3] += 1.0
        made.counter += 1
    now = packing.pack_values(form, keep=True)
    assert packing.changes(form, 0) is None and packing.changes(form, 1) is None, "too many versions came after them"
    for base in range(2, len(versions)):
        changes = packing.changes(form, base)
        assert changes is not None and packing.changes(form, base) is changes
        run = versions[base].copy()
        patch(form, run, changes)
        np.testing.assert_array_equal(run, now)
