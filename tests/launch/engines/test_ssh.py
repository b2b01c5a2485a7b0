"""Runs over SSH on real sshds: their bits, their keys, hosts that go, vanish or were never there; nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dps.transport.clock import now
from tests.chaos.cluster import ROOT
from tests.launch.engines.programs import bits, write
from tests.launch.engines.sshd import Hosts
from tests.launch.runs.test_real import Terminal
from tests.launch.test_local import until


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Terminal]:
    """A user of the hosts one and two, in a folder with an experiment."""
    made = Terminal(tmp_path)
    hosts = Hosts(tmp_path / "ssh", made.mark, "one", "two")
    made.environ["PATH"] = f"{hosts.bin}:{os.environ['PATH']}"
    made.hosts = hosts  # type: ignore[attr-defined]
    write(tmp_path, "hosts: [one, two]\n")
    yield made
    try:
        until(lambda: not made.living(), 12.0)
        assert not list((tmp_path / "temporary").rglob("*")), "temporary files here"
        assert not list(hosts.temporary.glob("*/*")), "temporary files on hosts"
    finally:
        for pid in made.living():
            os.kill(pid, signal.SIGKILL)
        hosts.close()


def hosts_of(user: Terminal) -> Hosts:
    found: Hosts = user.hosts  # type: ignore[attr-defined]
    return found


def begun(user: Terminal, *more: str) -> None:
    """Launch in the background, and wait until both workers train."""
    user.dps("launch", "--on", "ssh", "--detach", "experiment.yaml", *more)
    until(lambda: user.dps("logs", "1").count("begins at") >= 2)


pytestmark = pytest.mark.slow


def test_the_final_bits_are_those_of_this_machine(user: Terminal) -> None:
    user.dps("launch", "experiment.yaml")
    user.dps("launch", "--on", "ssh", "experiment.yaml")
    assert bits(user.folder / "runs" / "1") == bits(user.folder / "runs" / "2")
    tasks = user.view("2").tasks
    assert {name: task["host"] for name, task in tasks.items()} == {
        "chief": "one", "ps:0": "one", "ps:1": "two", "worker:0": "one", "worker:1": "two",
    }  # fmt: skip
    assert {task["state"] for task in tasks.values()} == {"SUCCEEDED"}
    assert user.view("2").values["chief"].startswith("127.0.0.1:")
    assert not (user.folder / "runs" / "2" / "keys").exists()


def test_each_host_gets_the_keys_of_its_roles_as_private_files_and_in_no_environment(user: Terminal) -> None:
    (user.folder / "experiment.yaml").write_text(
        (user.folder / "experiment.yaml").read_text().replace("hosts: [one, two]", "hosts: [one, two slots=1]")
    )
    begun(user, "--set", "steps=100000", "--set", "pause=0.01")
    folders = {path.parent.name: path for path in hosts_of(user).temporary.glob("*/dps-*/keys")}
    assert len(folders) == 2
    roles = sorted(sorted({f.name.split("-")[0] for f in folder.glob("*.key")}) for folder in folders.values())
    assert roles == [["chief", "ps", "worker"], ["ps"]]
    secrets = []
    for folder in folders.values():
        assert folder.stat().st_mode & 0o777 == 0o700
        for file in folder.glob("*"):
            assert file.stat().st_mode & 0o777 == 0o600
        secrets += [file.read_text().strip().encode() for file in folder.glob("*.key")]
    for pid in user.living():
        text = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
        assert not [secret for secret in secrets if secret in text]
    assert "two" in user.dps("status", "1")
    monitor = user.dps("monitor", "1", "--once")
    assert re.search(r"^1\.worker\.1 +RUNNING", monitor, re.M)
    user.dps("kill", "1")


def test_a_host_that_gives_notice_costs_no_step(user: Terminal) -> None:
    begun(user, "--set", "steps=400", "--set", "pause=0.01")
    os.kill(hosts_of(user).host_process("two"), signal.SIGTERM)
    until(lambda: user.view().over, 60.0)
    said = user.dps("logs", "1")
    assert user.view().state == "SUCCEEDED", said
    assert "two is about to go: it got SIGTERM" in said and "worker:1 is started on one" in said
    assert "ps:1 is started on one" in said
    assert {task["host"] for task in user.view().tasks.values()} == {"one"}


def test_a_host_that_vanishes_costs_a_rollback_and_its_tasks_come_back_elsewhere(user: Terminal) -> None:
    begun(user, "--set", "steps=300", "--set", "pause=0.01")
    until(lambda: user.dps("logs", "1", "--task", "chief").count("saved") >= 2)
    hosts_of(user).vanish("two")
    until(lambda: user.view().over, 60.0)
    said = user.dps("logs", "1")
    assert user.view().state == "SUCCEEDED", said
    assert "two is lost" in said
    assert {task["host"] for task in user.view().tasks.values()} == {"one"}


def test_the_chiefs_host_vanishes_and_the_run_begins_again_from_its_checkpoint(user: Terminal) -> None:
    begun(user, "--set", "steps=300", "--set", "pause=0.01")
    until(lambda: user.dps("logs", "1", "--task", "chief").count("saved") >= 2)
    hosts_of(user).vanish("one")
    until(lambda: user.view().over, 60.0)
    said = user.dps("logs", "1")
    assert user.view().state == "SUCCEEDED", said
    begins = [int(step) for step in re.findall(r"begins at (\d+)", said)]
    assert begins[0] == 0 and begins[-1] >= 20
    assert {task["host"] for task in user.view().tasks.values()} == {"two"}


def test_tasks_end_within_10_s_when_their_keeper_or_the_way_to_it_goes(user: Terminal) -> None:
    begun(user, "--set", "steps=100000", "--set", "pause=0.01")
    os.kill(user.view().values["keeper"]["pid"], signal.SIGKILL)
    until(lambda: not user.living(), 10.0)
    user.dps("launch", "--on", "ssh", "--detach", "experiment.yaml", "--set", "steps=100000", "--set", "pause=0.01")
    until(lambda: user.dps("logs", "2").count("begins at") >= 2)
    keeper, began = user.view("2").values["keeper"]["pid"], now()
    os.kill(keeper, signal.SIGSTOP)  # it is there, and cannot be heard
    until(lambda: not [pid for name in ("one", "two") for pid in hosts_of(user).processes(name)], 12.0)
    assert now() - began < 11.0
    os.kill(keeper, signal.SIGKILL)


def test_a_synchronised_project_runs_in_a_copy_that_is_removed(user: Terminal) -> None:
    file = user.folder / "experiment.yaml"
    file.write_text("sync: true\n" + file.read_text())
    (user.folder / "ssh" / "large").write_bytes(b"x")
    said = user.dps("launch", "--on", "ssh", "experiment.yaml")
    assert re.search(rf"begins at 0 in {hosts_of(user).temporary}/one/dps-\w+/project", said), said
    assert "BUILDING" in [state for state, _ in user.view().values["history"]]


def test_what_cannot_be_reached_is_one_line(user: Terminal) -> None:
    file = user.folder / "experiment.yaml"
    text = file.read_text()
    file.write_text(text.replace("[one, two]", "[one, nobody.invalid]"))
    said = user.dps("launch", "--on", "ssh", "experiment.yaml", code=2)
    assert said.count("\n") == 1 and "nobody.invalid: ssh says: Could not resolve hostname" in said
    file.write_text(text)
    hosts_of(user).forget()
    said = user.dps("launch", "--on", "ssh", "experiment.yaml", code=2)
    assert said.count("\n") == 1 and "one: ssh says: Host key verification failed; try: ssh one true" in said
    hosts_of(user).stop()
    said = user.dps("launch", "--on", "ssh", "experiment.yaml", code=3)
    assert said.count("\n") == 1 and "Connection refused" in said
    file.write_text(text.replace("[one, two]", '["one slots=1"]'))
    said = user.dps("launch", "--on", "ssh", "experiment.yaml", code=2)
    assert "the hosts have 1 slots for 4 tasks" in said
    file.write_text(text.replace("[one, two]", '["one slots=no"]'))
    said = user.dps("launch", "--on", "ssh", "experiment.yaml", code=2)
    assert re.match(r"dps: experiment.yaml:1:9: hosts\S*: got 'one slots=no', wanted a host", said), said
    assert subprocess.run(["pgrep", "-f", f"OUTPUT_DIR={user.folder}"], check=False, capture_output=True).returncode


FUNCTION = """
import dps, numpy as np

def train(server, steps):
    with dps.Session(
        server, {"w": np.zeros(100, np.float32)}, optimizer=dps.optim.SGD(0.1), hooks=[dps.StopAtStep(last_step=steps)]
    ) as session:
        while not session.should_stop():
            session.push({"w": session.pull()["w"] - 1})
    return server.task, session.global_step
"""
SCRIPT = """
import os, sys
import dps, numpy as np
import function

if __name__ == "__main__":
    with dps.launch.SSHCluster(["one", "two"], ps=2, workers=2) as cluster:
        run = cluster.run(function.train, 30)
        print("results", run.results, len(run.history))
        with cluster.session() as reader:
            print("read", reader.pull()["w"].shape)
        print(repr(cluster))
    print("keys", os.environ.get("DPS_KEYS"))
"""


def test_a_cluster_in_python_runs_functions_on_hosts(user: Terminal) -> None:
    (user.folder / "function.py").write_text(FUNCTION)
    (user.folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=user.folder, env=user.environ | {"PYTHONPATH": str(ROOT)}, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"results \[\(0, \d+\), \(1, \d+\)\] \d+", done.stdout), done.stdout
    assert "read (100,)" in done.stdout and "keys None" in done.stdout
