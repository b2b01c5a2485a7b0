"""The pictures of a run: what is drawn is what its history and its plan say, with axes and units."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import dps
from dps.launch.clusters.plots import plot_history, plot_placement
from dps.process import telemetry
from tests.in_process import cluster

LABELS = [
    ("time since the run began (s)", "loss"), ("global step", "loss"),
    ("time since the run began (s)", "examples/s"), ("time since the run began (s)", "staleness (versions)"),
]  # fmt: skip


def row(at: float, step: int, loss: float | None = 1.0, worker: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "at": at,
        "step": step,
        "loss": loss,
        "worker": f"worker:{worker}",
        "accepted": True,
        "staleness": 0,
        **more,
    }


def lines(ax: Any) -> dict[str, Any]:
    return {line.get_label(): np.array(line.get_data(), float) for line in ax.get_lines()}


def labels(figure: Any) -> list[tuple[str, str]]:
    return [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes]


def test_losses_speed_and_staleness_are_those_of_the_rows() -> None:
    history = [row(at / 10, at, 100.0 - at, staleness=at % 3, accepted=at % 4 != 0) for at in range(1, 101)]
    figure = plot_history("a run", history, {"worker:0": 32}, "time since the run began")
    assert labels(figure) == LABELS and figure.get_suptitle() == "a run: 100 pushes of 1 worker, 25 not accepted"
    by_time, by_step, speed, staleness = figure.axes
    dots = lines(by_step)["of one push"]
    assert dots[0].tolist() == list(range(1, 101)) and dots[1].tolist() == [100.0 - at for at in range(1, 101)]
    assert np.allclose(lines(by_time)["mean"][1], 100 - 10 * lines(by_time)["mean"][0])  # the rows lie on this line
    assert np.allclose(lines(speed)["from the first push on"][1], 74 * 32 / 9.8)  # accepted ones, after the first
    outline = next(patch for patch in speed.patches if patch.get_label() == "in one interval").get_data()
    assert np.dot(outline.values, np.diff(outline.edges)) == pytest.approx(75 * 32)
    assert lines(staleness)["largest"][1].max() == 2 and lines(staleness)["mean"][1].max() < 2


def test_without_batches_pushes_are_counted_and_a_loss_that_is_not_there_is_not_drawn() -> None:
    history = [row(1.0, 1, None), row(2.0, 2, math.nan, 1), row(3.0, 3, 5.0)]
    figure = plot_history("a run", history, {"worker:0": 32}, "virtual time")
    assert figure.axes[2].get_ylabel() == "pushes/s" and figure.axes[0].get_xlabel() == "virtual time (s)"
    assert lines(figure.axes[1])["of one push"].tolist() == [[3.0], [5.0]]
    assert lines(figure.axes[2])["from the first push on"][1].tolist() == [1.0, 1.0]
    assert figure.get_suptitle() == "a run: 3 pushes of 2 workers"


@pytest.mark.parametrize("history", [[], [row(0.0, 1)], [row(2.0, 1, None)]])
def test_a_run_with_next_to_nothing_has_its_axes(history: list[dict[str, Any]]) -> None:
    figure = plot_history("a run", history, {}, "time since the run began")
    assert [x for x, _ in labels(figure)] == [x for x, _ in LABELS]
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_a_long_run_draws_some_of_its_losses_and_the_mean_of_all() -> None:
    history = [row(at / 1000, at, float(at % 2)) for at in range(1, 60_001)]
    ax = plot_history("a run", history, {}, "virtual time").axes[0]
    assert len(lines(ax)["of one push"][0]) == 1000
    assert np.allclose(lines(ax)["mean"][1], 0.5, atol=0.01)


def test_bars_are_the_bytes_of_values_and_slots_in_a_fitting_unit() -> None:
    figure = plot_placement("Bytes of each ps", [[0, 3_000_000, 3_000_000], [2, 1_000_000, 1_000_000]])
    (ax,) = figure.axes
    assert ax.get_ylabel() == "memory (MB)"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["ps:0", "ps:2"]
    assert [(bar.get_y(), bar.get_height()) for bar in ax.patches] == [(0, 3.0), (0, 1.0), (3.0, 3.0), (1.0, 1.0)]
    assert ax.get_title() == "Bytes of each ps: max over mean 1.50"
    with pytest.raises(dps.errors.ConfigError, match="no session of this run has opened yet"):
        plot_placement("Bytes of each ps", [])


def train(server: Any, pushes: int = 8, **settings: Any) -> None:
    params = {"w": np.zeros((10, 4), np.float32), "b": np.zeros(6)}
    hooks = [dps.LogMetrics(batch=32)]
    with dps.Session(server, params, optimizer=dps.optim.Adam(0.1), hooks=hooks, **settings) as session:
        for _ in range(pushes):
            session.push({"w": np.ones((10, 4), np.float32), "b": np.ones(6)}, loss=0.5)


def test_runs_draw_themselves_as_threads_and_in_the_simulator() -> None:
    with dps.LocalCluster(ps=2, workers=2, processes=False) as local:
        run = local.run(train).wait(timeout=60)
    simulated = dps.simulate(train, ps=2, workers=2, compute=dps.sim.Compute(0.1))
    assert labels(run.plot()) == LABELS
    assert labels(simulated.plot())[2] == ("virtual time (s)", "examples/s")
    for bars in (run.placement().axes[0].patches, simulated.placement().axes[0].patches):
        assert [bar.get_height() for bar in bars] == [160, 48, 320, 96]  # bytes of values, then Adam's two slots


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": dps.optim.SGD(0.1)},
        {"optimizer": dps.optim.Adam(0.1)},
        {"optimizer": dps.optim.Momentum(0.1), "moving_average": dps.optim.MovingAverage(0.9)},
        {"optimizer": dps.optim.Adagrad(0.1, rowwise=True)},  # a slot with one element for each row
        {"optimizer": dps.optim.Adam(0.1), "update": dps.Local(2, dps.optim.Momentum(1.0))},  # the outer one's slot
    ],
)
def test_the_bytes_of_values_and_slots_are_those_that_the_ps_write(settings: dict[str, Any], tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    telemetry.on_opened.append(told.append)
    try:
        params = {"w": np.zeros((10, 3)), "b": np.zeros(10, np.float32)}
        with (
            cluster(2, 1, "inproc") as (server,),
            dps.Session(server, params, checkpoint_dir=tmp_path, **settings) as session,
        ):
            session.save()
    finally:
        telemetry.on_opened.remove(told.append)
    shards = [load_file(path) for path in sorted(max(tmp_path.glob("step-*")).glob("*.safetensors"))]
    written = [
        [ps, *(sum(a.nbytes for name, a in shard.items() if ("@" in name) is slot) for slot in (False, True))]
        for ps, shard in enumerate(shards)
    ]
    assert told[0]["placement"] == written and written[0][1] == 240


def test_without_matplotlib_one_line_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.axes'] = None\n"
        "import dps\n"
        "from dps.launch.commands.simulate import SimulatedRun\n"
        "run = SimulatedRun(1.0, [], {}, {}, [])\n"
        "for draw in (run.plot, run.placement):\n"
        "    try: draw()\n"
        "    except dps.errors.MissingExtra as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "plots need matplotlib, which is not installed; pip install 'dps[notebook]'\n" * 2
