"""A chief that is killed and started again: the run goes on as if nothing had been, or rolls back and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.node import Node
from dps.actors.ref import Ref, Sender
from dps.checkpoint import newest_whole
from dps.chief.ending import Shutdown
from dps.launch.commands.simulate import SimulatedCluster, SimulatedRun
from dps.messages.runs import AGENT, Registered
from dps.transport.sim import Compute, Kill, Network, Pause
from dps.transport.sim.world import DiskFull, Fault

EXACT: dict[str, Any] = {"compute": Compute(1.0), "network": Network(latency_s=1e-3)}
"""A step takes a second, everything else next to nothing."""
MODES = [dps.Async(), dps.SyncReplicas(), dps.Bounded(2)]
CHIEF = Kill("chief", at=3.5, restart_after=1.0)


class Seen(dps.Hook):
    """What the workers of a run saw."""

    def __init__(self) -> None:
        self.rollbacks: list[tuple[int, int]] = []
        self.leads: dict[int, bool] = {}

    def rolled_back(self, session: Any, step: int, lost: int) -> None:
        self.rollbacks.append((step, lost))


def train(server: Any, update: Any, seen: Seen, folder: str | None, steps: int, timeout: float) -> tuple[int, float]:
    """Steps up to a global one; who leads is asked after three quarters."""
    first = {"a": np.zeros(2), "b": np.zeros(3)}
    hooks = [seen, *([dps.CheckpointSaver(steps=4)] if folder else [])]
    with dps.Session(
        server, first, optimizer=dps.optim.SGD(1.0), update=update, checkpoint_dir=folder, hooks=hooks, timeout=timeout
    ) as session:
        while session.global_step < steps:
            session.push({"a": np.full(2, -1.0), "b": np.full(3, -1.0)})
            if session.global_step >= steps * 3 // 4 and server.task not in seen.leads:
                seen.leads[server.task] = session.is_chief
        return session.global_step, float(session.pull()["b"][0])


def run(
    update: Any, faults: list[Fault], folder: str | None = "run", steps: int = 20, workers: int = 2, ps: int = 2,
    timeout: float = 30.0, program: Any = train,
) -> tuple[SimulatedRun, Seen, int]:  # fmt: skip
    """A run of this program; the step of its newest checkpoint, -1 for none."""
    seen = Seen()
    with SimulatedCluster(
        program, update, seen, folder, steps, timeout, ps=ps, workers=workers, faults=faults, **EXACT
    ) as cluster:
        done = cluster.run()
        last = newest_whole(cluster.world.storage, "run", lambda _: None)
    return done, seen, -1 if last is None else last.step


def happened(done: SimulatedRun, what: str) -> list[Any]:
    return [event for event in done.trace if event.what == what]


@pytest.mark.parametrize("update", MODES)
@pytest.mark.parametrize("folder", ["run", None])
def test_the_run_goes_on_with_its_leader_and_its_checkpoints(update: Any, folder: str | None) -> None:
    done, seen, saved = run(update, [CHIEF], folder)
    assert not done.errors and set(done.exit_codes.values()) == {0}
    assert seen.rollbacks == [] and len(happened(done, "epoch")) == 1
    assert seen.leads == {0: True, 1: False}
    reached = max(step for step, _ in done.results)
    assert saved == (reached if folder else -1)
    if folder:
        assert len([e for e in happened(done, "saved") if e.time_s > 4.5]) >= 4  # by the timer of the leader, too


@pytest.mark.parametrize("update", MODES)
def test_a_worker_that_dies_while_there_is_no_chief_is_missed_and_the_next_one_leads(update: Any) -> None:
    done, seen, saved = run(update, [CHIEF, Kill("worker:0", at=4.0)], steps=16)
    assert done.exit_codes == {"chief": 0, "ps:0": 0, "ps:1": 0, "worker:0": None, "worker:1": 0}
    assert seen.leads == {1: True} and saved == done.results[1][0] and seen.rollbacks == []


@pytest.mark.parametrize("update", MODES)
def test_a_worker_that_ends_while_there_is_no_chief_has_finished(update: Any) -> None:
    def uneven(server: Any, update: Any, seen: Seen, folder: str | None, steps: int, timeout: float) -> Any:
        return train(server, update, seen, folder, 4 if server.task == 0 else steps, timeout)

    done, _, saved = run(update, [Kill("chief", at=1.8, restart_after=3.0)], steps=12, program=uneven)
    assert not done.errors and set(done.exit_codes.values()) == {0}
    assert saved == done.results[1][0] and not happened(done, "worker lost")


@pytest.mark.parametrize("update", MODES)
def test_when_all_have_ended_while_there_was_no_chief_the_last_step_is_saved_all_the_same(update: Any) -> None:
    done, _, saved = run(update, [Kill("chief", at=3.5, restart_after=3.0)], steps=4)
    assert not done.errors and set(done.exit_codes.values()) == {0}
    assert saved == max(step for step, _ in done.results)


@pytest.mark.parametrize("update", MODES)
def test_a_chief_that_dies_when_only_one_ps_knows_of_the_end_ends_the_run_as_it_was(
    monkeypatch: pytest.MonkeyPatch, update: Any
) -> None:
    """That ps is gone; the other one knows the journal, which says that the run has ended."""
    begin, told = Shutdown.tell_nodes, list[str]()

    def tell_one(self: Shutdown, message: Any, addresses: Any, linger_s: float) -> None:
        if told:
            begin(self, message, addresses, linger_s)
            return
        told.extend(address for address in addresses if address.startswith("ps0"))
        self.message, self._over = message, True  # it is killed before the others hear
        self.node.ask(Ref(told[0], AGENT), message, 9.0, lambda _: None)

    monkeypatch.setattr(Shutdown, "tell_nodes", tell_one)
    faults = [Kill("chief", at=5.0, restart_after=1.0)]
    done, _, saved = run(update, faults, steps=4, workers=1)
    assert [done.exit_codes[name] for name in ("chief", "ps:0", "ps:1")] == [0, 0, 0] and saved == 4
    assert len(told) == 1 and done.seconds < 15.0


@pytest.mark.parametrize("update", MODES)
@pytest.mark.parametrize("back_s", [0.5, 4.0])
def test_a_ps_that_is_lost_with_the_chief_rolls_the_run_back(update: Any, back_s: float) -> None:
    done, seen, saved = run(update, [CHIEF, Kill("ps:1", at=3.5, restart_after=back_s)])
    assert not done.errors and set(done.exit_codes.values()) == {0}
    assert [e.detail["epoch"] for e in happened(done, "epoch")] == [1, 2]
    assert seen.leads == {0: True, 1: False} and saved == max(step for step, _ in done.results)
    assert len(seen.rollbacks) == 2


@pytest.mark.parametrize("update", MODES)
def test_all_ps_that_are_lost_with_the_chief_roll_the_run_back(update: Any) -> None:
    lost = [Kill(f"ps:{task}", at=3.5, restart_after=1.0 + task) for task in range(2)]
    done, seen, saved = run(update, [CHIEF, *lost])
    assert not done.errors and set(done.exit_codes.values()) == {0}
    assert [e.detail["epoch"] for e in happened(done, "epoch")] == [1, 2]
    assert seen.leads == {0: True, 1: False} and saved == max(step for step, _ in done.results)


@pytest.mark.parametrize("tasks", [[1], [0, 1]])
def test_without_a_checkpoint_dir_a_ps_that_is_lost_with_the_chief_ends_the_run(tasks: list[int]) -> None:
    done, _, _ = run(dps.Async(), [CHIEF, *(Kill(f"ps:{t}", at=3.5, restart_after=1.0) for t in tasks)], None)
    assert {done.exit_codes[name] for name in ("chief", "ps:0", "ps:1")} == {3}
    for task in range(2):
        said = done.errors[f"worker:{task}"]
        assert said.startswith("TaskLost") and "give the session a checkpoint_dir" in said


def test_a_ps_that_never_heard_that_it_is_registered_is_asked_what_it_serves_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first Register is sent again until the next chief answers, and says then which epoch the ps has seen by now.
    Nothing is saved, so that the run would end if the chief took the ps for an empty one."""
    answer, chiefs, lost = Node.answer, list[Node](), list[int]()

    def loses(self: Node, sender: Sender, message: Any = None, done: Any = None) -> None:
        if isinstance(message, Registered) and sender.name == "ps:0":
            chiefs.append(self)
            if self is chiefs[0]:
                lost.append(sender.request)
                return
        answer(self, sender, message, done)

    monkeypatch.setattr(Node, "answer", loses)
    done, seen, _ = run(dps.Async(), [CHIEF], None)
    assert not done.errors and set(done.exit_codes.values()) == {0}, done.errors
    assert seen.rollbacks == [] and len(happened(done, "epoch")) == 1 and len(happened(done, "taken up")) == 1
    assert len(lost) > 1 and set(lost) == {1}, "it was one request"


def test_a_ps_that_is_lost_with_the_chief_and_stays_away_ends_the_run_and_is_named() -> None:
    done, _, _ = run(dps.Async(), [CHIEF, Kill("ps:1", at=3.5, restart_after=500.0)], timeout=100.0)
    assert done.exit_codes["chief"] == 3
    assert "ps:1 was lost with the chief and did not come back within 50 s" in done.errors["worker:0"]


@pytest.mark.parametrize("update", MODES)
def test_a_chief_that_dies_twice_is_taken_up_from_twice(update: Any) -> None:
    done, seen, saved = run(update, [CHIEF, Kill("chief", at=7.5, restart_after=1.0)])
    assert not done.errors and set(done.exit_codes.values()) == {0} and seen.rollbacks == []
    assert seen.leads == {0: True, 1: False} and saved == max(step for step, _ in done.results)


def test_sessions_save_and_restore_through_a_chief_that_was_started_again() -> None:
    def saves(server: Any, update: Any, seen: Seen, folder: str | None, steps: int, timeout: float) -> Any:
        with dps.Session(
            server, {"a": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), checkpoint_dir=folder, timeout=timeout
        ) as session:
            for _ in range(4):
                session.push({"a": np.full(2, -1.0)})
            name = session.save()  # nobody is there to answer
            session.push({"a": np.full(2, -1.0)})
            step = session.restore(name)
            return name, step, session.push({"a": np.full(2, -1.0)}).step, float(session.pull()["a"][0])

    done, _, saved = run(None, [Kill("chief", at=3.9, restart_after=1.0)], workers=1, ps=1, program=saves)
    assert not done.errors and done.results == [("step-000000000004-epoch-000001", 4, 5, 5.0)] and saved == 5


def restores(server: Any, update: Any, seen: Seen, folder: str | None, steps: int, timeout: float) -> list[float]:
    """Each step is done twice: once before it goes back, once after; the values after each."""
    values = []
    first = {"a": np.zeros(2), "b": np.zeros(2)}
    with dps.Session(server, first, optimizer=dps.optim.SGD(1.0), update=update, checkpoint_dir=folder) as session:
        for _ in range(steps):
            name = session.save(timeout=600)
            session.push({"a": np.full(2, -1.0), "b": np.full(2, -1.0)})
            session.restore(name, timeout=600)
            while not session.push({"a": np.full(2, -1.0), "b": np.full(2, -1.0)}).accepted:
                pass
            values.append(float(session.pull()["a"][0]))
    return values


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("others", [(), ("ps:1",)])
def test_a_restore_waits_for_the_next_chief(others: tuple[str, ...], workers: int) -> None:
    for seed in range(6):
        at = 0.2 + 0.29 * seed
        faults: list[Fault] = [Kill(name, at=at, restart_after=1.0) for name in ("chief", *others)]
        with SimulatedCluster(
            restores, None, Seen(), "run", 8, 60.0, ps=2, workers=workers, faults=faults, seed=seed,
            compute=Compute(0.05), network=Network(latency_s=1e-3),
        ) as cluster:  # fmt: skip
            done = cluster.run()
        assert not done.errors, (seed, done.errors)
        if workers == 1 and not others:
            assert done.results == [[float(step) for step in range(1, 9)]]


def test_a_restore_whose_answer_was_lost_is_not_made_again() -> None:
    """The session asks again."""
    with SimulatedCluster(
        restores, None, Seen(), "run", 6, 60.0, ps=1, workers=1, compute=Compute(0.05),
        network=Network(latency_s=1e-3, loss=0.3),
    ) as cluster:  # fmt: skip
        done = cluster.run()
    assert not done.errors and done.results == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]
    assert len(happened(done, "epoch")) == 7


def test_a_push_under_way_and_a_token_that_is_waited_for_outlive_the_chief() -> None:
    """Worker 1 is paused, so worker 0 waits for its token when the chief dies, and asks the next chief how it is."""
    done, seen, _ = run(dps.SyncReplicas(), [CHIEF, Pause("worker:1", at=3.3, seconds=0.9)], steps=8)
    assert not done.errors and seen.rollbacks == [] and len(happened(done, "admitted")) == 2


def test_a_worker_that_was_given_up_is_not_waited_for_again() -> None:
    """The sessions' patience is shorter than what a chief gives a worker that does not come. All ps are lost, too."""
    faults = [Kill("worker:1", at=2.5), Kill("chief", at=6.5, restart_after=1.0)]
    faults += [Kill(f"ps:{task}", at=6.5, restart_after=1.0) for task in range(2)]
    done, seen, saved = run(dps.SyncReplicas(), faults, workers=3, steps=16, timeout=6.0)
    assert not done.errors and done.results == [(16, 16.0), None, (16, 16.0)] and saved == 16
    assert len(seen.rollbacks) == 2 and done.seconds < 30


def test_a_worker_that_is_lost_with_the_chief_and_all_ps_is_given_up_soon() -> None:
    """Only the journal knows of it."""
    faults = [Kill(name, at=6.5, restart_after=1.0) for name in ("chief", "ps:0", "ps:1")]
    faults.append(Kill("worker:1", at=6.5))
    done, _, saved = run(dps.SyncReplicas(), faults, workers=3, steps=16, timeout=20.0)
    assert not done.errors and done.results == [(16, 16.0), None, (16, 16.0)] and saved == 16


def test_a_restart_of_the_chief_is_told_once_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    run(dps.Async(), [CHIEF])
    (said,) = [r.message for r in caplog.records if "goes on with run epoch" in r.message]
    assert said == "chief: goes on with run epoch 1 of an earlier chief; sessions: worker:0, worker:1"


# -- a full disk -----------------------------------------------------------------------------------------------------


class Reads(dps.Hook):
    """The versions that a worker read, and how they may go: an epoch never comes back, its counters never fall."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._last: dict[int, dps.Version] = {}

    def take(self, task: int, version: dps.Version) -> None:
        last, self._last[task] = self._last.get(task, version), version
        if (version.epoch, version.counters) < (last.epoch, last.counters):
            self.wrong.append(f"worker:{task} read {version} after {last}")


def accumulate(server: Any, update: Any, seen: Seen, folder: str | None, steps: int, timeout: float) -> Any:
    """As `train`; the pushes that were acknowledged, and what conditional pulls said of them."""
    reads, acknowledged = Reads(), 0
    with dps.Session(
        server, {"a": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), update=update, checkpoint_dir=folder, timeout=timeout,
        hooks=[seen, dps.CheckpointSaver(steps=4)],
    ) as session:  # fmt: skip
        values = session.pull()
        while session.global_step < steps:
            acknowledged += session.push({"a": np.full(2, -1.0)}).accepted
            newer = session.pull(if_newer_than=session.version)
            if newer is None and (session.pull()["a"] != values["a"]).any():
                reads.wrong.append("nothing was newer, and the values differ")
            values = session.pull() if newer is None else newer
            reads.take(server.task, session.version)
        return acknowledged, float(values["a"][0]), reads.wrong


@pytest.mark.parametrize("update", [dps.Async(), dps.SyncReplicas()])
@pytest.mark.parametrize(("seconds", "begun"), [(6.0, 3), (14.0, 2)])
def test_no_epoch_is_used_twice_where_the_disk_was_full_and_chief_and_ps_died(
    update: Any, seconds: float, begun: int
) -> None:  # fmt: skip
    """The ps dies twice: with a full disk, and then with the chief. The first time its epoch cannot be written down."""
    faults: list[Fault] = [DiskFull(at=5.5, seconds=seconds), Kill("ps:0", at=6.5, restart_after=0.5)]
    faults += [Kill("ps:0", at=16.5, restart_after=0.5), Kill("chief", at=16.5, restart_after=0.5)]
    done, seen, saved = run(update, faults, steps=30, workers=1, ps=1, timeout=60.0, program=accumulate)
    assert not done.errors and set(done.exit_codes.values()) == {0}
    epochs = [e.detail["epoch"] for e in happened(done, "epoch")]
    assert epochs == sorted(set(epochs)) and len(epochs) == begun
    ((acknowledged, value, wrong),) = done.results
    assert wrong == [] and saved == value == 30.0
    assert acknowledged - sum(lost for _, lost in seen.rollbacks) == value


def test_while_the_disk_is_full_sessions_are_told_why_no_epoch_begins() -> None:
    faults: list[Fault] = [DiskFull(at=5.5, seconds=100.0), Kill("ps:0", at=6.5, restart_after=0.5)]
    done, _, _ = run(dps.Async(), faults, steps=30, workers=1, ps=1, timeout=10.0)
    words = "no run epoch begins while the chief cannot write its journal: cannot write run/journal.json: No space left"
    assert done.errors["worker:0"].startswith("DeadlineExceeded") and words in done.errors["worker:0"]
