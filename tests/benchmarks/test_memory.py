"""Memory of processes: what is counted, what counts as growth; small runs of the programs that measure it."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks import memory, soak
from benchmarks.processes import Held, Watch, held
from dps.transport.shared_memory import SharedMemory, attach

MB = 1 << 20


def of_this_process() -> Held:
    found = held(os.getpid())
    assert found is not None
    return found


def test_shared_memory_counts_once_with_the_process_that_made_it() -> None:
    before = of_this_process()
    shared = SharedMemory(32 * MB)
    other_view = attach(shared.name)
    after = of_this_process()
    assert after.owned - before.owned == 32 * MB
    assert after.private - before.private < 8 * MB
    assert other_view.nbytes == 32 * MB


def test_memory_of_its_own_counts_as_private() -> None:
    before = of_this_process()
    array = np.frombuffer(
        mmap.mmap(-1, 64 * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8
    )  # malloc may have as much that was freed
    array[:] = 1
    after = of_this_process()
    assert after.private - before.private >= 56 * MB
    assert after.owned == before.owned
    assert array[0] == 1


def test_a_watch_keeps_the_most_that_was_held() -> None:
    watch = Watch([os.getpid()], every_s=10.0)
    shared = SharedMemory(16 * MB)
    watch.look()
    made = of_this_process().owned
    del shared
    assert watch.stop()[os.getpid()].owned == made
    assert of_this_process().owned == made - 16 * MB


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert held(2**22 + 1) is None


def look(at_s: float, private: int, owned: int = 0, descriptors: int = 20, per_s: float = 100.0) -> soak.Look:
    return soak.Look(at_s, {"ps0": Held(private, owned, 0, 0, descriptors)}, per_s)


def test_growth_is_found_after_the_first_quarter() -> None:
    warming = [look(i, (i + 1) * 50 * MB) for i in range(3)]
    level = [look(i, 200 * MB) for i in range(9)]
    assert soak.grown(warming + level) == []
    leaking = [look(i, (200 + 2 * i) * MB) for i in range(9)]
    (said,) = soak.grown(warming + leaking)
    assert said.startswith("ps0: memory grew from")


def test_shared_memory_and_descriptors_may_not_grow_either() -> None:
    early = [look(i, 200 * MB) for i in range(6)]
    late = [look(i, 200 * MB, owned=MB, descriptors=25, per_s=50.0) for i in range(6)]
    assert soak.grown(early + late) == [
        "ps0: shared memory grew from 0.0 to 1.0 MB",
        "ps0: descriptors grew from 20 to 25",
        "note: the rate fell from 100 to 50 calls/s",
    ]


def test_too_few_looks_tell_nothing() -> None:
    (said,) = soak.grown([look(i, MB) for i in range(7)])
    assert "wanted 8 or more" in said


@pytest.mark.nightly
def test_a_soak_uses_everything_and_sees_all_processes(tmp_path: Path) -> None:
    looks = soak.soak(2.4, 0.8, 1000, str(tmp_path))
    assert len(looks) == 3
    assert list(looks[-1].held) == ["chief", "ps0", "ps1", "w0", "w1"]
    assert sum(look.per_s for look in looks) > 0


def test_a_ps_may_hold_more_for_readers_in_place_and_for_a_second_worker() -> None:
    def run(workers: int, form: str, private: int, owned: int = 0) -> dict[str, object]:
        ps = {"private": private, "owned": owned, "attached": 0, "peak": 0}
        return {"workers": workers, "form": form, "ps": ps, "worker": ps}

    base = run(1, "copied", 150 * MB)
    for workers, form, times in ((1, "copied", 3), (1, "in place", 4), (8, "copied", 4), (8, "in place", 5)):
        good = memory.judged(run(workers, form, 250 * MB, (times - 1) * 100 * MB), base, 100 * MB)
        assert (good["times"], good["wanted"], good["holds"]) == (times, times, True)
        bad = memory.judged(run(workers, form, 250 * MB, times * 100 * MB), base, 100 * MB)
        assert not bad["holds"]


@pytest.mark.nightly
def test_memory_of_a_small_run(capsys: pytest.CaptureFixture[str]) -> None:
    memory.main(["--workers", "1", "--forms", "in place", "--size", "1m", "--loops", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert row["ps"]["owned"] // MB in (1, 2, 3)  # buffers of values, and a page by which neighbours are told
    assert row["worker"]["owned"] // MB == 1
    assert row["ps"]["private"] >= 50 * MB
