"""Processes that are stopped for longer than heartbeats last, and go on: SIGSTOP, or a machine that is suspended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.launch.commands.simulate import SimulatedCluster, SimulatedRun
from dps.transport.sim import Compute, Fault, Kill, Network, Pause
from dps.transport.sim.runtime import EPOCH_S
from dps.transport.sockets.datagrams import DatagramPeers
from tests.simulation.test_runs import happened

AT_S = 3.0
AFTER_S = 8.0
"""How long workers train after the pause."""
SOON_S = 5.0
MODES = ["async", "sync", "bounded:1"]
LONG = [7.0, 30.0]
"""Longer than heartbeats; of the second, others have given up who stood still."""


def train(server: Any, checkpointed: bool, until_s: float) -> list[float]:
    """Push once in 0.1 s until a time; when each push was answered, on the clock that all share."""
    runtime, times = server.runtime, list[float]()
    hooks = [dps.CheckpointSaver(seconds=1.0)] if checkpointed else []
    settings: dict[str, Any] = {"checkpoint_dir": "run" if checkpointed else None, "hooks": hooks}
    with dps.Session(server, {"a": np.zeros(4)}, optimizer=dps.optim.SGD(1.0), timeout=60.0, **settings) as session:
        while runtime.wall() < EPOCH_S + until_s:
            if len(times) % 2:
                session.step({"a": np.ones(4)})
            else:
                session.pull()
                session.push({"a": np.ones(4)})
            times.append(runtime.wall() - EPOCH_S)
    return times


def paused(
    who: tuple[str, ...], seconds: float, update: str = "async", checkpointed: bool = False, workers: int = 2,
    faults: tuple[Fault, ...] = (), **world: Any,
) -> SimulatedRun:  # fmt: skip
    """A run of one ps in which some tasks stand still for some seconds, all at the same moment."""
    faults = (*(Pause(name, AT_S, seconds) for name in who), *faults)
    settings: dict[str, Any] = {"shared_memory": True, "network": Network(latency_s=1e-4), **world}
    until_s = AT_S + seconds + AFTER_S
    with SimulatedCluster(
        train, checkpointed, until_s, workers=workers, update=update, faults=faults, compute=Compute(0.1), **settings
    ) as cluster:
        return cluster.run(until_s + 200.0)


def check(run: SimulatedRun, seconds: float) -> None:
    """All ended well, and every worker made a push soon after the pause and trained to the end."""
    assert not run.errors and set(run.exit_codes.values()) == {0}
    for times in run.results:
        again = min(at for at in times if at > AT_S + seconds)
        assert again - AT_S - seconds < SOON_S
        assert times[-1] > AT_S + seconds + 3.0


def names(run: SimulatedRun, what: str) -> list[str]:
    return [event.detail["name"] for event in happened(run, what)]


@pytest.mark.parametrize("seconds", LONG)
@pytest.mark.parametrize("update", MODES)
def test_a_worker_goes_on_soon_though_it_was_given_up_meanwhile(update: str, seconds: float) -> None:
    run = paused(("worker:1",), seconds, update)
    check(run, seconds)
    assert names(run, "worker lost") == ["worker:1"] and names(run, "admitted").count("worker:1") >= 2


@pytest.mark.parametrize("seconds", [1.0, 5.0])
@pytest.mark.parametrize("who", ["worker:1", "ps:0", "chief"])
def test_nobody_is_lost_who_comes_back_before_heartbeats_say_so(who: str, seconds: float) -> None:
    run = paused((who,), seconds, "sync")
    check(run, seconds)
    assert names(run, "worker lost") == names(run, "ps lost") == []


@pytest.mark.parametrize("seconds", LONG)
@pytest.mark.parametrize("update", MODES)
def test_a_ps_that_stood_still_costs_a_rollback(update: str, seconds: float) -> None:
    run = paused(("ps:0",), seconds, update, checkpointed=True)
    check(run, seconds)
    assert names(run, "ps lost") == ["ps:0"] and len(happened(run, "epoch")) == 2


def test_without_a_checkpoint_a_ps_that_stood_still_ends_the_run_with_its_name() -> None:
    run = paused(("ps:0",), 7.0)
    assert run.exit_codes["chief"] == 3
    assert all(text.startswith("TaskLost: ps:0 was silent") for text in run.errors.values())


@pytest.mark.parametrize(("update", "checkpointed"), [("async", False), ("sync", True), ("bounded:1", True)])
def test_a_run_goes_on_without_its_chief_and_with_it(update: str, checkpointed: bool) -> None:
    check(paused(("chief",), 30.0, update, checkpointed), 30.0)


def asking(server: Any) -> list[float]:
    """Push, and ask who leads, until a time; how long each question took."""
    runtime, took = server.runtime, list[float]()
    with dps.Session(server, {"a": np.zeros(4)}, optimizer=dps.optim.SGD(1.0), timeout=60.0) as session:
        while runtime.wall() < EPOCH_S + AT_S + 30.0:
            session.push({"a": np.ones(4)})
            before = runtime.now()
            leads, over = session.is_chief, runtime.wall() > EPOCH_S + AT_S + 29.5  # then the first one may have left
            assert leads == (server.task == 0) or over
            took.append(runtime.now() - before)
    return took


@pytest.mark.parametrize("fault", [Pause("chief", AT_S, 20.0), Kill("chief", AT_S, restart_after=20.0)])
def test_asking_who_leads_does_not_slow_a_loop_down_while_the_chief_is_away(fault: Fault) -> None:
    settings: dict[str, Any] = {"network": Network(latency_s=1e-4), "compute": Compute(0.1), "faults": (fault,)}
    with SimulatedCluster(asking, workers=2, **settings) as cluster:
        run = cluster.run(300.0)
    assert not run.errors
    for took in run.results:
        assert sum(took) < 3.0 and len(took) > 100  # until the chief's silence is noticed, no longer


@pytest.mark.parametrize("update", MODES)
def test_workers_that_all_stood_still_go_on_though_all_were_given_up(update: str) -> None:
    run = paused(("worker:0", "worker:1"), 30.0, update)
    check(run, 30.0)
    assert sorted(names(run, "worker lost")) == ["worker:0", "worker:1"]


@pytest.mark.parametrize("update", MODES)
def test_a_ps_and_all_workers_that_stood_still_learn_that_their_epoch_is_over(update: str) -> None:
    run = paused(("ps:0", "worker:0", "worker:1"), 7.0, update, checkpointed=True)
    check(run, 7.0)
    assert names(run, "ps lost") == ["ps:0"] and len(happened(run, "epoch")) == 2


@pytest.mark.parametrize("update", MODES)
def test_a_machine_that_is_suspended_goes_on_where_it_was(update: str) -> None:
    run = paused(("chief", "ps:0", "worker:0", "worker:1"), 30.0, update)
    check(run, 30.0)
    assert names(run, "worker lost") == names(run, "ps lost") == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("update", MODES)
def test_no_call_fails_for_time_in_which_its_process_was_stopped(update: str, seed: int) -> None:
    """The pause is longer than the timeouts of sessions and nodes; with such a network it hits calls on their way."""
    everybody = ("chief", "ps:0", "worker:0", "worker:1")
    check(paused(everybody, 100.0, update, seed=seed, network=Network(latency_s=0.1)), 100.0)


@pytest.mark.parametrize("update", MODES)
def test_a_chief_that_goes_on_first_gives_the_others_time(update: str) -> None:
    later = tuple(Pause(name, AT_S, 30.0 + after_s) for name, after_s in (("ps:0", 3.0), ("worker:0", 4.5)))
    run = paused(("chief", "worker:1"), 30.0, update, faults=later)
    check(run, 34.5)
    assert names(run, "worker lost") == names(run, "ps lost") == []


def test_a_chief_that_was_stopped_while_a_ps_was_started_again_does_not_give_the_ps_up() -> None:
    faults = (Kill("ps:0", AT_S - 2.0, restart_after=4.0),)
    run = paused(("chief",), 52.0, checkpointed=True, faults=faults)
    check(run, 52.0)
    assert len(happened(run, "epoch")) == 2 and not happened(run, "failed")


def test_a_peer_that_is_not_heard_any_more_is_what_the_simulator_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that forgets a ps when its connection breaks, while the ps goes on writing to it, waits for ever."""
    monkeypatch.setattr(DatagramPeers, "disconnected", DatagramPeers.gone)
    run = paused(("worker:1",), 7.0)
    assert run.errors == {"worker:1": "DeadlineExceeded: worker:1: ps:0 has not answered"}
