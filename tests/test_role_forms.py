"""Every way to say where the cluster is, and who this task is: the same roles start, train and end by themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dps import role
from tests.examples.processes import Terminals, free_addresses

ROLE = ("-m", "dps.role")

BEGIN = """
import os, sys, numpy as np, dps
settings = {"optimizer": dps.optim.SGD(1.0), "hooks": [dps.StopAtStep(last_step=int(sys.argv[1]))]}
with dps.Server.from_env() as server, dps.Session(server, {"w": np.zeros(4, np.float32)}, **settings) as session:
    own = 0
    while not session.should_stop():
        own += session.push({"w": np.ones(4, np.float32)}).accepted
"""
MEET = """
        if own == 3:
            print("3 pushes", flush=True)
        if own == 8 and server.task == 1:
            open("enough", "w").close()
        if own >= 8 and os.path.exists("enough"):
            session.request_stop()
"""
END = """
    print(f"{server.name}: {own} pushes, step {session.global_step}, w {session.pull()['w'][0]:.0f}")
"""
"""Each accepted push lowers w by 1 in async; in sync each step does. With MEET it goes on until worker 1 has 8."""

COUNTED = re.compile(r"worker:(\d+): (\d+) pushes, step (\d+), w (-?\d+)")


def environment(*argv: str) -> dict[str, str]:
    """What the task would be told, of the flags and the environment."""
    return role.task_environment(role.parser().parse_args(argv))


def cluster_of(found: dict[str, str]) -> object:
    return json.loads(found["DPS_CLUSTER"])


# -- where the settings come from ---------------------------------------------------------------------------------


PS, CHIEF, FIRST, FOURTH = "127.0.0.1:2222", "127.0.0.1:2220", "127.0.0.1:2230", "127.0.0.1:2233"
IN_FILES = {"ps": [PS], "chief": [CHIEF], "worker": {"0": FIRST, "3": FOURTH}}
FILES = {
    "cluster.toml": f'ps = ["{PS}"]\nchief = ["{CHIEF}"]\n[worker]\n0 = "{FIRST}"\n3 = "{FOURTH}"\n',
    "cluster.yaml": f"ps: ['{PS}']\nchief: ['{CHIEF}']\nworker: {{0: '{FIRST}', 3: '{FOURTH}'}}\n",
    "cluster.json": json.dumps(IN_FILES),
}


@pytest.mark.parametrize("name", FILES)
def test_a_cluster_file_may_be_toml_yaml_or_json(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    found = environment("--job", "worker", "--task", "3", "--cluster", str(tmp_path / name))
    assert cluster_of(found) == IN_FILES
    assert (found["DPS_JOB"], found["DPS_TASK"], found["DPS_CHIEF"]) == ("worker", "3", "")


def test_the_reference_trainers_flags_and_their_aliases_say_the_same() -> None:
    hosts = ("--ps_hosts", "a:1,b:1", "--worker_hosts", "c:1,d:1", "--chief_hosts", "e:1")
    short = environment("--job", "ps", "--task", "1", *hosts)
    assert short == environment("--job_name=ps", "--task_index=1", *hosts)
    assert cluster_of(short) == {"chief": ["e:1"], "ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]}


def test_flags_correct_the_task_that_tf_config_names(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"ps": ["a:1"], "worker": ["c:1", "d:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    assert (environment()["DPS_JOB"], environment()["DPS_TASK"]) == ("worker", "1")
    assert environment("--task", "0")["DPS_TASK"] == "0"
    assert (environment("--job", "ps")["DPS_JOB"], environment("--job", "ps")["DPS_TASK"]) == ("ps", "")
    assert cluster_of(environment("--job", "ps")) == cluster


def test_dps_cluster_names_the_cluster_and_the_flags_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPS_CLUSTER", '{"ps": ["a:1"], "worker": ["c:1", "d:1"]}')
    found = environment("--job", "worker", "--task", "1")
    assert cluster_of(found) == {"ps": ["a:1"], "worker": ["c:1", "d:1"]}
    assert (found["DPS_JOB"], found["DPS_TASK"], found["DPS_CHIEF"]) == ("worker", "1", "")


@pytest.mark.parametrize(("rank", "job", "task"), [(0, "ps", "0"), (1, "worker", "0"), (3, "worker", "2")])
def test_in_a_slurm_step_the_first_rank_is_the_ps_and_the_others_are_workers(
    rank: int, job: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"NUM_TASKS": "4", "NODELIST": "n[01-02]", "TASKS_PER_NODE": "2(x2)"}
    for key, value in step.items():
        monkeypatch.setenv(f"SLURM_STEP_{key}", value)
    monkeypatch.setenv("SLURM_PROCID", str(rank))
    found = environment()
    assert cluster_of(found) == {"ps": ["n01:8888"], "worker": ["n01:8889", "n02:8888", "n02:8889"]}
    assert (found["DPS_JOB"], found["DPS_TASK"]) == (job, task)


def test_the_chiefs_address_as_a_flag_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPS_CLUSTER", '{"ps": ["a:1"], "worker": ["c:1"]}')
    found = environment("--job", "worker", "--chief", "127.0.0.1:7000")
    assert (found["DPS_CLUSTER"], found["DPS_CHIEF"]) == ("", "127.0.0.1:7000")


# -- processes ----------------------------------------------------------------------------------------------------


def counted(said: dict[str, str]) -> dict[int, tuple[int, int, int]]:
    """Of each worker, by task: its accepted pushes, the step at which it ended, and w then."""
    found = COUNTED.findall("\n".join(said.values()))
    return {int(task): (int(own), int(step), int(w)) for task, own, step, w in found}


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "count.py").write_text(BEGIN + END)
    return "count.py"


def test_each_task_by_a_cluster_file(program: str, tmp_path: Path) -> None:
    ps, first, second = free_addresses(3)
    (tmp_path / "cluster.yaml").write_text(f"ps: ['{ps}']\nworker: ['{first}', '{second}']\n")
    with Terminals(tmp_path) as terminals:
        terminals.start("ps", *ROLE, "--cluster", "cluster.yaml", "--job", "ps", "--task", "0", "--update", "sync")
        for task in ("0", "1"):
            own = ("--cluster", "cluster.yaml", "--job", "worker", "--task", task, "--program", program)
            terminals.start(f"worker:{task}", *ROLE, *own, "--", "10")
        codes, said = terminals.ended()
    assert set(codes.values()) == {0}, said
    assert said["ps"].splitlines()[0] == f"dps ps:0 at {ps}"
    assert counted(said) == {0: (10, 10, -10), 1: (10, 10, -10)}


@pytest.mark.slow
def test_where_tf_config_says_everything_all_tasks_have_one_command_line(program: str, tmp_path: Path) -> None:
    ps, chief, worker = free_addresses(3)
    cluster = {"ps": [ps], "master": [chief], "worker": [worker]}
    with Terminals(tmp_path) as terminals:
        for job in cluster:
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
            terminals.start(job, *ROLE, "--program", program, "--", "10", TF_CONFIG=config)
        codes, said = terminals.ended()
    assert codes == {"ps": 0, "master": 0, "worker": 0}, said
    assert said["master"].startswith(f"dps chief at {chief}\n")
    assert counted(said) == {0: (10, 10, -10)}


@pytest.mark.slow
@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_worker_that_is_added_on_the_fly_takes_part(update: str, program: str, tmp_path: Path) -> None:
    """It knows the chief's address only, and is given its task. The first one goes on until the second has pushed."""
    (tmp_path / "meet.py").write_text(BEGIN + MEET + END)
    with Terminals(tmp_path) as terminals:
        terminals.start("chief", *ROLE, "--job", "chief", "--chief", "127.0.0.1:0", "--update", update)
        join = ("--chief", terminals.line("chief").removeprefix("dps chief at "))
        terminals.start("ps", *ROLE, "--job", "ps", *join)
        runs = ("--program", "meet.py", "--", "1000000000")
        terminals.start("first", *ROLE, "--job", "worker", "--task", "0", *join, *runs)
        terminals.line_with("first", "3 pushes")
        terminals.start("second", *ROLE, "--job", "worker", *join, *runs)
        codes, said = terminals.ended()
    assert codes == {"chief": 0, "ps": 0, "first": 0, "second": 0}, said
    found = counted(said)
    last = max(step for _, step, _ in found.values())
    assert found[1][0] == 8 < found[0][0]
    assert found[0][2] == -last  # the first one looked when the second had made its last push
    # Every push is a step, or the first one is in every step and the second one in 8 of them.
    assert last == found[0][0] + (8 if update == "async" else 0)


def test_a_worker_says_which_ps_is_missing_and_the_command_it_names_starts_it(program: str, tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("chief", *ROLE, "--job", "chief", "--chief", "127.0.0.1:0", "--ps", "1", "--workers", "1")
        chief = terminals.line("chief").removeprefix("dps chief at ")
        terminals.start("worker", *ROLE, "--job", "worker", "--chief", chief, "--program", program, "--", "10")
        said = terminals.line_with("worker", "waits for")
        words, _, command = said.partition("python ")
        assert words == "worker:0: the chief waits for ps:0; start it with: "
        terminals.start("ps", *command.split())
        codes, _ = terminals.ended()
    assert codes == {"chief": 0, "worker": 0, "ps": 0}
