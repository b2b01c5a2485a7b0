"""The Local strategy in a run without ps: workers average their copies among themselves every few steps."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.checkpoint import LocalStorage
from dps.errors import ConfigError
from dps.strategy import Local
from tests.strategy.test_local_strategy import drift
from tests.strategy.text import GUIDE, guide_batches, guide_params, train

ROUGH = dps.sim.Network(loss=0.05, double=0.05, reorder=0.05)
CPU = np.float64


def alone(workers: int, work: Any, *args: Any, **settings: Any) -> Any:
    return dps.simulate(work, *args, workers=workers, **{"ps": 0, **settings})


@pytest.mark.parametrize("seed", range(4))
def test_the_copies_are_averaged_every_few_steps(seed: int) -> None:
    run = alone(3, drift, lambda server: Local(server, 4), 3, seed=seed, network=ROUGH)
    assert not run.errors, run.errors
    np.testing.assert_allclose(run.results, [[-24.0, -24.0]] * 3)  # 3 rounds of 4 steps of 2 on average
    assert set(run.exit_codes.values()) == {0}


def trained(server: Any, outer: Any, dtype: str) -> Any:
    """What a worker reads after each step, and its pushes' steps, where all have other gradients."""
    first = {"w": np.zeros(3, dtype), "n": np.array(7)}
    with Local(server, 3, outer) as strategy:
        with strategy.scope():
            variables = strategy.variables(first, optimizer=dps.optim.Momentum(0.1))
        found = []
        for step in range(7):
            if step == 4 and server.task > 0:
                variables.assign({"n": np.array(10 * server.task)})
            gradient = (variables.read()["w"] - server.task).astype(dtype) + np.asarray(step % 2, dtype)
            push = strategy.run(lambda gradient=gradient: variables.apply_gradients({"w": gradient}))
            found.append((push.step, variables.read()["w"].tolist(), int(variables.read()["n"])))
    return found


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("outer", [None, dps.optim.Momentum(0.7, 0.9, nesterov=True), dps.optim.Adam(0.1)])
def test_it_gives_what_local_mode_gives_with_a_ps(outer: Any, dtype: str) -> None:
    without, with_ps = alone(3, trained, outer, dtype), dps.simulate(trained, outer, dtype, workers=3, ps=2)
    assert not without.errors and not with_ps.errors, (without.errors, with_ps.errors)
    for mine, theirs in zip(without.results, with_ps.results, strict=True):
        for (step, w, n), (wanted_step, wanted, wanted_n) in zip(mine, theirs, strict=True):
            assert (step, n) == (wanted_step, wanted_n)
            np.testing.assert_allclose(w, wanted, rtol=1e-3 if dtype == "float16" else 1e-6)


def tied_and_assigned(server: Any) -> Any:
    """What a worker reads after a round in which it has set one of two tied weights by its second name."""
    torch = pytest.importorskip("torch")
    first = torch.zeros(2)
    with Local(server, 2) as strategy:
        with strategy.scope():
            variables = strategy.variables({"a": first, "b": first}, optimizer=dps.optim.SGD(1.0))
        variables.assign({"b": np.full(2, 1 + server.task, np.float32)})
        for _ in range(2):
            variables.apply_gradients({"a": np.ones(2, np.float32)})
        return [value.tolist() for value in variables.read().values()]


def test_tied_weights_may_be_set_by_either_name() -> None:
    run = alone(2, tied_and_assigned)
    assert run.results == [[[1.0, 1.0]] * 2] * 2, run.errors


def test_workers_with_the_guides_batches_print_the_guides_losses() -> None:
    def guide(server: Any) -> Any:
        with Local(server, 4) as strategy:
            return train(strategy, guide_params(), guide_batches(5))[0]

    run = alone(2, guide)
    np.testing.assert_allclose(run.results, [GUIDE, GUIDE], atol=1e-6)


def test_the_steps_after_the_last_round_are_averaged_at_the_end_and_saved(tmp_path: Path) -> None:
    def work(server: Any, steps: int) -> Any:
        with Local(server, 4, checkpoint_dir=str(tmp_path / "run")) as strategy:
            with strategy.scope():
                variables: Any = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
            began = variables.step, float(variables.read()["w"][0])
            for _ in range(steps):
                variables.apply_gradients({"w": np.full(1, server.task + 1.0)})
        return began, variables.step, float(variables.read()["w"][0])

    storage = LocalStorage()
    for steps, found in ((6, ((0, 0.0), 2, -9.0)), (2, ((2, -9.0), 3, -12.0))):
        run = alone(2, work, steps, storage=storage)
        assert not run.errors, run.errors
        assert run.results == [found] * 2


def test_slots_that_a_restart_loses_are_told_by_each_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def work(server: Any) -> None:
        with Local(server, 2, checkpoint_dir=str(tmp_path / "run")) as strategy:
            with strategy.scope():
                variables: Any = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.AdamW(0.1))
            for _ in range(4):
                variables.apply_gradients({"w": np.ones(1)})

    caplog.set_level(logging.INFO, "dps")
    storage = LocalStorage()
    for told in (0, 2):
        run = alone(2, work, storage=storage)
        assert not run.errors, run.errors
        assert sum("first_moment, second_moment) begin as new at round 2" in text for text in caplog.messages) == told


def test_a_worker_that_makes_fewer_steps_leaves_and_the_others_go_on() -> None:
    def work(server: Any) -> Any:
        with Local(server, 4) as strategy:
            with strategy.scope():
                variables = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
            for _ in range(8 if server.task else 5):
                variables.apply_gradients({"w": np.ones(1)})
        return float(variables.read()["w"][0])

    run = alone(3, work)
    assert not run.errors, run.errors
    np.testing.assert_allclose(run.results, [-4 - 1 / 3 - 8 / 3] * 3)


def test_a_lost_worker_is_left_out() -> None:
    def work(server: Any) -> Any:
        with Local(server, 4) as strategy:
            with strategy.scope():
                variables = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
            for _ in range(16):
                server.runtime.sleep(0.1)
                variables.apply_gradients({"w": np.full(1, 4.0 if server.task == 2 else 1.0)})
        return float(variables.read()["w"][0])

    run = alone(3, work, faults=[dps.sim.Kill("worker:2", at=0.6)])
    assert run.results[:2] == [-20.0, -20.0], run  # 4 steps of 2, and 12 of 1


def test_a_program_that_fails_does_not_wait_for_the_others() -> None:
    def work(server: Any) -> Any:
        began = server.runtime.now()
        try:
            with Local(server, 4) as strategy:
                with strategy.scope():
                    variables = strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
                variables.apply_gradients({"w": np.ones(1)})
                if server.task == 1:
                    raise KeyError("of the program")
                for _ in range(3):
                    variables.apply_gradients({"w": np.ones(1)})
        except KeyError:
            return server.runtime.now() - began
        return float(variables.read()["w"][0])

    run = alone(2, work)
    assert not run.errors and run.results[0] == -4.0 and run.results[1] < 1, run


@pytest.mark.parametrize("steps", [2, 8])
def test_workers_with_rounds_of_other_lengths_are_told_so(steps: int) -> None:
    def work(server: Any) -> None:
        with Local(server, steps if server.task else 4) as strategy, strategy.scope():
            strategy.variables({"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))

    run = alone(2, work)
    words = f"worker:0 has an average every 4 steps, worker:1 has an average every {steps} steps; all workers"
    assert words in run.errors["worker:0"], run.errors


def test_what_needs_a_ps_is_refused() -> None:
    def work(server: Any) -> None:
        with pytest.raises(ConfigError, match=r"got hooks in a run without ps; wanted checkpoint_dir and timeout"):
            Local(server, 4, hooks=[])
        own = {"n": dps.Variable(np.zeros(1), synchronization="on_read", aggregation="sum")}
        with Local(server, 4) as strategy, strategy.scope():
            with pytest.raises(ConfigError, match="n: synchronization='on_read'"):
                strategy.variables(own, optimizer=dps.optim.SGD(1.0))
            variables = strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0))
            with pytest.raises(ConfigError, match="called a second time; under Local"):
                strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0))
            with pytest.raises(ValueError, match="the gradient of w"):
                variables.apply_gradients({"w": np.full(2, np.nan)})
            assert not variables.read()["w"].any()

    run = alone(1, work)
    assert not run.errors, run.errors


PROGRAM = """
import numpy as np
import dps

with dps.Server.from_env() as server:
    with dps.strategy.Local(server, steps=3) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0))
        for _ in range(7):
            variables.apply_gradients({"w": np.full(2, 1.0 + server.task)})
    print("ended with", variables.read()["w"], flush=True)
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in made]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["launch", "cluster"])
def test_real_processes_end_promptly_and_say_nothing_of_a_ps(form: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    began = time.monotonic()
    if form == "launch":
        commands = [["dps.cli", "launch", "--ps", "0", "--workers", "2", str(program)]]
    else:
        hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
        role = ["dps.role", "--job", "worker", "--worker_hosts", hosts, "--program", str(program), "--task"]
        commands = [[*role, str(task)] for task in range(2)]
    running = [
        subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    said = "".join(process.communicate(timeout=60)[0] for process in running)
    assert [process.returncode for process in running] == [0] * len(running), said
    assert len(re.findall(r"ended with \[-10\.5 -10\.5\]", said)) == 2, said
    assert "needs a ps" not in said and "waits for" not in said, said
    assert time.monotonic() - began < 20
