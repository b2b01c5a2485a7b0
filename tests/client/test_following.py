"""Following a run from outside of it: versions, checkpoints, its end; an evaluator that nobody waits for."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.transport.sim import Kill, World
from tests.examples.processes import EXAMPLES, Terminals, free_addresses
from tests.in_process import cluster

ROLE = ("-m", "dps.role")
SGD = dps.optim.SGD(1.0)


def trained(server: dps.Server, steps: int, folder: Path | None = None) -> None:
    """Count down from 0: the values of step n are -n."""
    params = {"hidden": {"w": np.zeros((5, 2), np.float32)}, "b": np.zeros((), np.float64)}
    hooks = [dps.CheckpointSaver(steps=2)] if folder else []
    settings: dict[str, Any] = {"partitioner": dps.partition.Fixed(2), "hooks": hooks, "checkpoint_dir": folder}
    with dps.Session(server, params, optimizer=SGD, **settings) as session:
        for _ in range(steps):
            session.push({"hidden": {"w": np.ones((5, 2), np.float32)}, "b": np.ones(())})


def check(step: int, values: Any) -> None:
    assert values["hidden"]["w"].shape == (5, 2) and values["hidden"]["w"].dtype == np.float32
    assert float(values["hidden"]["w"].mean()) == float(values["b"]) == -step


def test_an_evaluator_follows_versions_and_no_step_and_no_end_waits_for_it() -> None:
    with (
        cluster(ps=2, workers=1, update=dps.SyncReplicas(), owned=False) as (worker,),
        dps.Server(None, "evaluator", 0, chief=worker.target) as evaluator,
    ):
        go, steps = threading.Event(), []

        def train() -> None:
            with dps.Session(worker, {"b": np.zeros(())}, optimizer=SGD) as session:
                for _ in range(3):
                    session.push({"b": np.ones(())})
                go.wait(30)
            worker.stop()

        thread = threading.Thread(target=train)
        thread.start()
        for step, values in dps.follow(evaluator, pause=0.01, timeout=30):
            assert float(values["b"]) == -step
            steps.append(step)
            if step == 3:
                go.set()
        thread.join(30)
        assert steps[-1] == 3 and steps == sorted(set(steps))
        assert evaluator.join(60) == 0 and worker.exit_code == 0


def test_checkpoints_are_followed_to_the_last_one(tmp_path: Path) -> None:
    with (
        cluster(ps=2, workers=1, owned=False) as (worker,),
        dps.Server(None, "evaluator", 0, chief=worker.target) as evaluator,
    ):
        found = dps.follow(evaluator, tmp_path, pause=0.01, timeout=30)
        thread = threading.Thread(target=lambda: (trained(worker, 5, tmp_path), worker.stop()))
        thread.start()
        seen = list(found)
        thread.join(30)
    for step, values in seen:
        check(step, values)
    steps = [step for step, _ in seen]
    assert steps[-1] == 5 and steps == sorted(set(steps))
    (only,) = dps.follow(None, tmp_path)  # the run is over: no lock is there
    check(*only)
    assert only.step == 5


@pytest.mark.parametrize("of", ["versions", "checkpoints"])
def test_the_first_pair_after_a_rollback_says_that_it_went_back(tmp_path: Path, of: str) -> None:
    params, one = {"b": np.zeros(())}, {"b": np.ones(())}
    with (
        cluster(ps=2, workers=1) as (worker,),
        dps.Session(worker, params, optimizer=SGD, checkpoint_dir=tmp_path) as session,
    ):

        def trains(steps: int) -> str:
            for _ in range(steps):
                session.push(one)
            return session.save()

        def follows() -> tuple[int, bool]:
            found = next(followed)
            step, values = found
            assert float(values["b"]) == -step and len(found) == 2 and tuple(found) == (found.step, found.values)
            return step, found.went_back

        first = trains(1)
        followed = dps.follow(worker.target, tmp_path if of == "checkpoints" else None, pause=0.01, timeout=30)
        assert follows() == (1, False)
        trains(3)
        assert follows() == (4, False)
        session.restore(first)
        trains(1)
        assert follows() == (2, True)
        trains(1)
        assert follows() == (3, False)
        session.restore(first)
        trains(6)
        assert follows() == (7, True), "also where the step has been passed again"
        trains(1)
        assert follows() == (8, False)
        followed.close()


def test_a_checkpoint_that_is_not_finished_is_passed_over(tmp_path: Path) -> None:
    with cluster(workers=1) as (worker,):
        trained(worker, 2, tmp_path)
    newest = max(path for path in tmp_path.iterdir() if path.is_dir())
    (tmp_path / newest.name.replace("step-000000000002", "step-000000000009")).mkdir()
    assert [step for step, _ in dps.follow(None, tmp_path)] == [2]


def test_nothing_newer_until_the_deadline_says_what_was_waited_for(tmp_path: Path) -> None:
    with pytest.raises(dps.DeadlineExceeded, match=r"no newer checkpoint in .* for 0 s \(none so far\)"):
        list(dps.follow(None, tmp_path / "none", pause=0.01, timeout=0.05))
    with cluster(workers=1) as (worker,):
        trained(worker, 1)
        found = dps.follow(worker.target, pause=0.01, timeout=1.0)
        assert next(found).step == 1
        with pytest.raises(dps.DeadlineExceeded, match=r"no newer version for 1 s \(the last one was of step 1\)"):
            next(found)


def test_an_evaluator_whose_run_fails_is_told_why() -> None:
    with cluster(workers=1) as (worker,):
        trained(worker, 1)
        with dps.Server(None, "evaluator", 0, chief=worker.target) as evaluator:
            found = dps.follow(evaluator, pause=0.01, timeout=30)
            next(found)
            evaluator._end_task(3, "ps:0 was lost")
            with pytest.raises(dps.TaskLost, match="ps:0 was lost"):
                next(found)


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (None, r"evaluator:0: a pull took more than 20.0 s at step \d+: ps:0 \(away for .* the chief \(away for"),
        ("run", "follow: no newer checkpoint in run for 20 s .*; does the run go on?"),
    ],
)
def test_an_evaluator_whose_cluster_is_gone_gets_one_line(folder: str | None, words: str) -> None:
    chief, told = "chief:2220", []

    def serves(job: str, bind: str) -> None:
        dps.Server(None, job, 0, chief=chief, bind=bind, ps=1, workers=1).join()

    def works() -> None:
        server = dps.Server(None, "worker", 0, chief=chief, bind="worker0:0")
        params, sgd = {"w": np.zeros(2)}, dps.optim.SGD(1.0)
        with dps.Session(server, params, optimizer=sgd, checkpoint_dir=folder) as session:
            while not session.should_stop():
                session.push({"w": np.ones(2)})
                server.runtime.sleep(0.1)

    def evaluates() -> None:
        server = dps.Server(None, "evaluator", 0, chief=chief, bind="evaluator0:0")
        with pytest.raises(dps.DeadlineExceeded, match=words) as error:
            list(dps.follow(server, folder, pause=0.5, timeout=20.0))
        told.append(str(error.value))

    with World(1, faults=[Kill(name, 3.0) for name in ("chief", "ps:0", "worker:0")], trace=False) as world:
        world.process("chief", lambda: serves("chief", chief))
        world.process("ps:0", lambda: serves("ps", "ps0:0"))
        world.process("worker:0", works)
        evaluator = world.process("evaluator:0", evaluates)
        world.run(100.0, stop=lambda: evaluator.state == "ended")
        assert evaluator.error is None
    assert len(told) == 1 and "\n" not in told[0]


def test_a_mistake_is_said_at_the_call(tmp_path: Path) -> None:
    for arguments in ({"pause": 0}, {"timeout": -1}):
        with pytest.raises(ConfigError, match="wanted seconds above 0"):
            dps.follow(None, tmp_path, **arguments)
    with pytest.raises(ConfigError, match=r"follow: got the folder '/' as a server; give it as checkpoint_dir='/'"):
        dps.follow("/")
    with pytest.raises(ConfigError, match="neither a server nor a checkpoint_dir"):
        dps.follow(None)


def test_an_evaluator_need_not_be_in_the_cluster_and_needs_somebody_to_follow() -> None:
    chief, ps, worker = free_addresses(3)
    spec = {"chief": [chief], "ps": [ps], "worker": [worker]}
    with dps.Server(spec, "chief", 0) as server, dps.Server(spec, "evaluator") as evaluator:
        assert (evaluator.name, evaluator.target) == ("evaluator:0", server.target)
    with pytest.raises(ConfigError, match="evaluator: got a cluster of ps, wanted one with a chief or a worker"):
        dps.Server({"ps": [ps]}, "evaluator", 0)


PROGRAM = """
import json, os, sys, dps
config = json.loads(os.environ["TF_CONFIG"])
with dps.Server.from_env() as server:
    summaries = dps.SummaryWriter(sys.argv[1], server.name)
    for step, values in dps.follow(server, pause=0.01):
        summaries.write(step, total=values["w"].sum())
print("evaluated as", config["task"], sorted(config["cluster"]))
"""
TRAINER = """
import sys, time, numpy as np, dps
with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0), hooks=[dps.StopAtStep(last_step=int(sys.argv[1]))]
) as session:
    while not session.should_stop():
        session.push({"w": np.ones(3)})
        time.sleep(0.005)
"""


@pytest.mark.slow
def test_an_evaluator_is_a_task_that_tf_config_names(tmp_path: Path) -> None:
    (tmp_path / "evaluate.py").write_text(PROGRAM)
    (tmp_path / "train.py").write_text(TRAINER)
    ps, worker = free_addresses(2)
    spec = {"ps": [ps], "worker": [worker]}  # worker 0 is the chief
    with Terminals(tmp_path) as terminals:
        for job, program in (("ps", ""), ("worker", "train.py"), ("evaluator", "evaluate.py")):
            config = json.dumps({"cluster": spec, "task": {"type": job, "index": 0}})
            arguments = ("--program", program, "--", "log" if job == "evaluator" else "400") if program else ()
            terminals.start(job, *ROLE, *arguments, TF_CONFIG=config)
        codes, said = terminals.ended()
    assert codes == {"ps": 0, "worker": 0, "evaluator": 0}, said
    assert "evaluated as {'type': 'evaluator', 'index': 0} ['ps', 'worker']" in said["evaluator"]
    rows = [json.loads(row) for row in (tmp_path / "log" / "summaries.jsonl").read_text().splitlines()]
    assert rows and all(row["total"] == -3 * row["step"] and row["worker"] == "evaluator:0" for row in rows)


@pytest.mark.parametrize("job", ["master", pytest.param("chief", marks=pytest.mark.slow)])
def test_master_is_a_synonym_of_chief_in_tf_config_and_in_the_flags(tmp_path: Path, job: str) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    chief, ps, worker = free_addresses(3)
    spec = {job: [chief], "ps": [ps], "worker": [worker]}
    config = json.dumps({"cluster": spec, "task": {"type": job, "index": 0}})
    with Terminals(tmp_path) as terminals:
        terminals.start("chief", *ROLE, TF_CONFIG=config) if job == "master" else terminals.start(
            "chief", *ROLE, "--job", "master", "--cluster", json.dumps(spec)
        )
        terminals.start("ps", *ROLE, "--job", "ps", "--cluster", json.dumps(spec))
        terminals.start(
            "worker", *ROLE, "--job", "worker", "--cluster", json.dumps(spec), "--program", "train.py", "--", "20"
        )
        codes, said = terminals.ended()
    assert codes == {"chief": 0, "ps": 0, "worker": 0}, said


@pytest.mark.slow
def test_dps_launch_runs_the_example_beside_the_training(tmp_path: Path) -> None:
    evaluate, mnist = EXAMPLES / "evaluate.py", str(EXAMPLES / "mnist.py")
    with Terminals(tmp_path) as terminals:
        flags = ("--ps", "2", "--workers", "2", "--evaluator", f"{evaluate} --logs logs --pause 0.05")
        terminals.start("launch", "-m", "dps.cli", "launch", *flags, mnist, "--", "--steps", "3000")
        codes, said = terminals.ended()
    assert codes == {"launch": 0}, said
    rows = [json.loads(row) for row in (tmp_path / "logs/evaluator/summaries.jsonl").read_text().splitlines()]
    assert rows and rows[-1]["accuracy"] > 0.8
    assert f"[evaluator:0] {len(rows)} versions seen" in said["launch"]


FAILING = "import sys\nsys.exit(7)\n"


@pytest.mark.slow
def test_an_evaluator_that_fails_ends_no_training_and_is_the_runs_exit_code(tmp_path: Path) -> None:
    (tmp_path / "evaluate.py").write_text(FAILING)
    (tmp_path / "train.py").write_text(TRAINER)
    with Terminals(tmp_path) as terminals:
        terminals.start("launch", "-m", "dps.cli", "launch", "--evaluator", "evaluate.py", "train.py", "--", "400")
        codes, said = terminals.ended()
    assert codes == {"launch": 1}, said
    assert "evaluator:0 ended with exit code 7; the training goes on" in said["launch"]
    assert "the run failed: evaluator:0 ended with exit code 7" in said["launch"]
