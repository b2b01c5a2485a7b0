"""Goals beside figures: what holds, and by how much the rest falls short."""

from __future__ import annotations

from typing import Any

import pytest

from dps.monitor import loops
from dps.monitor.goals import Goal, balance, kernels, settings, speeds, table


def row(work: str, size: str, of_limit: float, **more: Any) -> dict[str, Any]:
    return {
        "work": work, "size": size, "of_limit": of_limit, "in_place": False, "shared_memory": True, "limit": "memcpy",
        "rows_per_s": None, "lane": "a lane", "lists": None, "workers": 1, "computing_ms": None, **more,
    }  # fmt: skip


def test_a_goal_says_by_how_much_it_is_missed() -> None:
    assert Goal("a", 1.2, 1.2).verdict == "holds"
    assert Goal("a", 0.9, 1.2).verdict == "short by 25%"
    assert Goal("a", 1.3, 1.3, at_most=True).verdict == "holds"
    assert Goal("a", 2.6, 1.3, at_most=True).verdict == "over by 100%"


@pytest.mark.parametrize(
    ("figures", "wanted", "at_most"),
    [
        (row("pull", "4k", 0.5), 1.3, True),
        (row("pull", "64m", 0.5), 1.0, False),
        (row("pull", "4k", 0.5, shared_memory=False), 1.3, True),
        (row("pull", "64m", 0.5, in_place=True), 0.85, False),
        (row("push", "256m", 0.5, shared_memory=False), 1.2, False),
        (row("step", "resnet", 0.5, shared_memory=False), 1.6, False),
        (row("step", "resnet", 0.5), 0.75, False),
        (row("step", "resnet", 0.5, in_place=True), 0.85, False),
        (row("sync", "small", 0.5), 0.85, False),
    ],
)
def test_each_work_has_its_goal(figures: dict[str, Any], wanted: float, at_most: bool) -> None:
    (goal,) = speeds([figures], 10.0)
    assert (goal.wanted, goal.at_most) == (wanted, at_most)
    assert goal.figure == (2.0 if at_most else 0.5)


def test_rows_pushed_are_held_against_the_memory_there_is() -> None:
    figures = row("sparse push", "table", 0.1, rows_per_s=3e6, lists="fresh")
    (slow,) = speeds([figures], 5.0)
    assert (slow.figure, slow.wanted) == (3.0, 2.5)
    (fast,) = speeds([figures], 20.0)
    assert fast.wanted == 5.0
    assert "fresh lists" in fast.work


@pytest.mark.parametrize(
    ("figures", "said", "figure", "wanted"),
    [
        (row("loop step", "mlp", 0.5, computing_ms=0.7), "step, 0.7 ms", 1.0, 0.3),
        (row("loop", "mlp", 0.8, computing_ms=0.7, in_place=True), "in place, 0.7 ms", 0.25, 0.2),
        (row("loop overlapped", "mlp", 1.0, computing_ms=0.7), "overlapped, 0.7 ms", 0.0, 0.05),
        (row("loop pull and push", "mlp", 0.5, computing_ms=20.0), "pull and push, 20 ms", 1.0, 0.02),
    ],
)
def test_a_loop_is_held_against_local_training(
    figures: dict[str, Any], said: str, figure: float, wanted: float
) -> None:
    (goal,) = speeds([figures], 10.0)
    assert said in goal.work and goal.at_most
    assert (goal.figure, goal.wanted) == (pytest.approx(figure), wanted)


def test_two_workers_are_held_against_one_local_process() -> None:
    (goal,) = speeds([row("loop step", "mlp", 1.2, computing_ms=8.0, workers=2)], 10.0)
    assert (goal.figure, goal.wanted, goal.at_most) == (1.2, 1.7, False)
    assert "2 workers / one local process" in goal.work


def test_each_figure_names_its_lane_and_its_limit() -> None:
    figures = [
        row("pull", "4k", 0.5, lane="sockets", limit="raw ZeroMQ over tcp"),
        row("push", "64m", 0.5, lane="sockets", limit="raw TCP, buffers of 256 KB", shared_memory=False),
    ]
    small, large = speeds(figures, 10.0)
    assert "sockets" in small.work and "raw ZeroMQ over tcp" in small.work
    assert "sockets" in large.work and "raw TCP, buffers of 256 KB" in large.work


def test_every_setting_has_a_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "seconds", lambda work, at_least_s: [0.001])
    for setting, works in settings():
        assert works and setting.workers in ({"sync": (2,), "loop": (1, 2)}.get(setting.kind, (1,)))


def test_kernels_are_measured_against_memcpy() -> None:
    memcpy_gb_per_s, found = kernels(1, 0.01, 1 << 20)
    assert memcpy_gb_per_s > 0
    assert [(g.work, g.wanted) for g in found] == [("adagrad kernel / memcpy", 0.65), ("sgd kernel / memcpy", 1.1)]
    assert all(g.figure > 0 for g in found)


def test_bytes_are_even_over_the_ps_with_the_greedy_policy_and_a_partitioner() -> None:
    assert 1.0 <= balance().figure <= 1.05


def test_the_table_has_a_line_for_each_goal() -> None:
    text = table([{"work": "a / b", "figure": 0.5, "wanted": 1.0, "at_most": False, "verdict": "short by 50%"}])
    assert "a / b" in text and ">= 1.00  short by 50%" in text
