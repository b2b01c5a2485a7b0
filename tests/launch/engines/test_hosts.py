"""Hosts without a network: where tasks go, what a host process does, and what people read when ssh fails."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import tarfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dps import __version__
from dps.errors import ConfigError, DpsError, TaskLost, Unavailable
from dps.launch.engines.ssh import SSHEngine, command, parse_host, reason
from dps.launch.hosts import project
from dps.launch.hosts.engine import HostsEngine
from dps.launch.hosts.host import MODULE, Host, own_address
from dps.launch.hosts.machine import Machine
from dps.launch.hosts.pipe import Pipe
from dps.launch.hosts.remote import HostSpec, RemoteHost
from dps.launch.supervision.plan import Job, Resources, RunPlan, small_plan
from dps.launch.supervision.supervisor import Supervisor
from dps.transport.keys import files as key_files
from tests.launch.clusters.test_local_processes import until


def test_a_host_has_a_name_and_perhaps_slots() -> None:
    assert parse_host("me@box-1.example") == HostSpec("me@box-1.example")
    assert parse_host(" box1  slots = 4 ") == HostSpec("box1", 4)
    for wrong in ("", "-oProxyCommand=x", "box1 slots=0", "box1 gpus=2", "a b"):
        with pytest.raises(ConfigError, match="wanted a host"):
            parse_host(wrong)


@pytest.mark.parametrize(
    ("code", "said", "text", "error"),
    [
        (255, ["@@@", "Host key verification failed."], "ssh says: Host key verification failed; try", ConfigError),
        (255, ["ssh: connect to host b port 22: Connection refused"], "Connection refused", Unavailable),
        (127, ["bash: python: not found"], f"it has no {sys.executable}", ConfigError),
        (1, ["python: No module named dps.launch"], "has no dps", ConfigError),
        (-9, [], "its connection has ended (exit code -9)", TaskLost),
    ],
)
def test_why_a_connection_has_ended(code: int, said: list[str], text: str, error: type[DpsError]) -> None:
    why, found = reason("b", code, said)
    assert text in why and found is error


def test_ssh_asks_nobody_anything_and_gets_no_secret() -> None:
    words = command("box1")
    assert words[0] == "ssh" and "BatchMode=yes" in words and words[-2] == "box1" and MODULE in words[-1]


def test_hosts_are_needed_once_each_with_enough_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(2, 2)
    for hosts, words in (([], "got no hosts"), (["a", "a"], "got a twice"), (["a slots=3"], "3 slots for 4 tasks")):
        with pytest.raises(ConfigError, match=words):
            SSHEngine({"hosts": hosts}).check(plan)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="has no ssh"):
        SSHEngine({"hosts": ["a"]}).check(plan)


def test_a_machine_deals_its_gpus_out_and_takes_them_back() -> None:
    machine = Machine("box", 4, 1_000_000_000, ["0", "1"])
    assert machine.assign_share("worker:0", Resources(gpus=1))["CUDA_VISIBLE_DEVICES"] == "0"
    assert machine.assign_share("worker:1", Resources(cpus=2, gpus=1))["CUDA_VISIBLE_DEVICES"] == "1"
    with pytest.raises(ConfigError, match=r"more GPUs than box has \(2\); worker:2 gets none"):
        machine.assign_share("worker:2", Resources(gpus=1))
    machine.take_share_back("worker:0")
    assert machine.assign_share("worker:2", Resources(gpus=1))["CUDA_VISIBLE_DEVICES"] == "0"
    with pytest.raises(ConfigError, match="ps:0 wants memory: 2.0 GB; box has 1.0 GB"):
        machine.assign_share("ps:0", Resources(memory=2_000_000_000))


class Fake(HostsEngine):
    """Hosts whose processes are children of this one."""

    def __init__(self, *places: HostSpec) -> None:
        super().__init__({})
        self.places = places

    def check(self, plan: RunPlan) -> None:
        pass

    def _connect_hosts(self, plan: RunPlan, notice: Any) -> list[RemoteHost]:
        hosts = [RemoteHost(place, self._line, notice) for place in self.places]
        for host in hosts:
            host.connect(Pipe([sys.executable, "-m", MODULE], host.take_report, partial(broken, host)))
        return hosts

    def go_on(self) -> bool:
        return False


def broken(host: RemoteHost, code: int, said: list[str]) -> None:
    host.mark_lost(f"exit code {code}")


def test_tasks_go_to_the_host_with_the_fewest_and_come_back_elsewhere(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time\nprint('here', flush=True)\nwhile True: time.sleep(0.1)\n")
    key_files.new(str(tmp_path / "keys"))
    lines: list[str] = []
    engine = Fake(HostSpec("a", 2, address="127.0.0.1"), HostSpec("b", address="127.0.0.1"))
    env = {"DPS_KEYS": str(tmp_path / "keys")}
    jobs = {"chief": Job(), "ps": Job(), "worker": Job(2, (str(program),))}
    supervisor = Supervisor(
        RunPlan(jobs, env=env), lambda name, text: lines.append(f"{name} {text}"), engine=engine
    )  # fmt: skip
    try:
        supervisor.start()
        places = {name: child.host for name, child in supervisor.tasks.children.items()}
        assert places == {"chief": "a", "ps:0": "a", "worker:0": "b", "worker:1": "a"}
        until(lambda: lines.count("worker:0 here") == 1)
        until(lambda: "worker:0" in engine.used())
        supervisor._engine._hosts[1].cut_connection("a test says so")  # type: ignore[attr-defined]
        until(lambda: supervisor.handle_next_end(0.05) or lines.count("worker:0 here") == 2)
        assert supervisor.tasks.children["worker:0"].host == "a" and "dps b is lost: a test says so" in lines
        assert "dps worker:0 ended with SIGKILL; it is started again" in lines
        assert "worker:0 the log ends here: b is lost: a test says so" in lines
    finally:
        supervisor.stop()
    assert not [child for child in supervisor.tasks.children.values() if child.is_alive]


def test_a_host_process_keeps_keys_and_projects_private_and_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dps-1").mkdir()
    monkeypatch.setattr("dps.launch.hosts.host.private_folder", lambda: str(tmp_path / "dps-1"))
    said: list[dict[str, Any]] = []
    host = Host(said.append, {"SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"})
    hello = host.hello_message()
    assert (hello["version"], hello["address"]) == (__version__, "10.0.0.2") and own_address({}) == ""
    host.handle_order({"do": "keys", "files": {"worker-1.key": "x" * 40, "../outside": "y"}})
    (folder,) = tmp_path.glob("dps-*")
    assert {f.name: f.stat().st_mode & 0o777 for f in (folder / "keys").iterdir()} == {
        "worker-1.key": 0o600, "outside": 0o600,
    }  # fmt: skip
    assert (folder / "keys").stat().st_mode & 0o777 == 0o700
    source = tmp_path / "source"
    (source / ".git").mkdir(parents=True)
    (source / ".git" / "config").write_text("no")
    (source / "out").mkdir()
    (source / "out" / "values").write_text("no")
    (source / "train.py").write_text("yes")
    project.pack(str(source), str(tmp_path / "archive"), str(source / "out"))
    with tarfile.open(tmp_path / "archive") as archive:
        assert sorted(archive.getnames()) == [".", "./train.py"]
    for data, last in project.pieces(str(tmp_path / "archive")):
        host.handle_order({"do": "project", "data": base64.b64encode(data).decode(), "last": last})
    assert Path(said[-1]["path"], "train.py").read_text() == "yes"
    host.handle_order({
        "do": "start", "name": "worker:0", "arguments": [], "env": {}, "folder": "/nowhere", "waits": False,
        "pipes": False,
    })  # fmt: skip
    assert said[-1] == {"is": "failed", "name": "worker:0", "text": "No such file or directory: /nowhere"}
    host.end_tasks()
    assert not list(tmp_path.glob("dps-*"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_private_folder_of_a_process_that_is_killed_is_removed(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "dps-1" / "keys"
    folder.mkdir(parents=True)
    text = f"""
import os, time
from dps.launch.hosts import host as own_folder
own_folder.private_folder = lambda: {str(folder.parent)!r}
kept = own_folder.HostFolder()
time.sleep(0.3)
assert os.path.isdir({str(folder)!r})
os.killpg(0, {int(number)})
"""
    done = subprocess.run([sys.executable, "-c", text], start_new_session=True, check=False)
    assert done.returncode == -number
    until(lambda: not folder.parent.exists(), 5.0)


def test_a_project_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "LARGEST", 10)
    (tmp_path / "data").write_bytes(b"x" * 11)
    with pytest.raises(ConfigError, match="keep data elsewhere"):
        project.pack(str(tmp_path), os.devnull)


def test_a_notice_moves_workers_and_ps_and_ends_the_run_where_it_takes_the_chief() -> None:
    from dps.launch.supervision.restarts import Evictions

    class Task:
        def __init__(self, name: str) -> None:
            self.name, self.is_alive, self.code, self.is_displaced = name, True, None, False
            self.signals: list[int] = []

        def send_signal(self, number: int) -> None:
            self.signals.append(number)

    def made() -> tuple[dict[str, Any], Evictions, list[str]]:
        tasks = {name: Task(name) for name in ("chief", "ps:0", "worker:0", "worker:1")}
        said: list[str] = []
        return tasks, Evictions(tasks, said.append), said  # type: ignore[arg-type]

    tasks, moving, said = made()
    moving.add_notice(["ps:0", "worker:1"], "b")
    moving.end_evicted()
    assert {name: task.signals for name, task in tasks.items() if task.signals} == {
        "ps:0": [signal.SIGTERM], "worker:1": [signal.SIGTERM],
    }  # fmt: skip
    tasks["worker:1"].is_displaced, tasks["worker:1"].code = True, 0
    assert (
        moving.is_evicted(tasks["worker:1"]) and not moving.is_evicted(tasks["worker:0"]) and not moving.may_begin_again
    )
    for names in (["chief"], ["worker:0", "worker:1"]):
        tasks, moving, said = made()
        moving.add_notice(names, "a")
        moving.end_evicted()
        assert tasks["chief"].signals == [signal.SIGTERM] and not tasks["worker:0"].signals
        assert moving.may_begin_again and "begins again from its checkpoint" in said[0]


def test_a_task_that_starts_while_further_keys_come_reads_whole_ones(tmp_path: Path) -> None:
    key_files.new(str(tmp_path / "keys"))
    files = key_files.part(str(tmp_path / "keys"), ["chief"])
    said: list[Any] = []
    host = Host(said.append, {})
    host.handle_order({"do": "keys", "files": files})
    assert host._folder is not None
    path, over, seen = os.path.join(host._folder.path, "keys"), threading.Event(), list[str]()

    def read() -> None:
        while not over.is_set():
            seen.extend(Path(path, name).read_text().strip() for name in files)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(300):
            host.handle_order({"do": "keys", "files": files})
    finally:
        over.set()
        reader.join()
        host._folder.remove_folder()
    assert set(seen) == {text.strip() for text in files.values()} and said == []
    assert not Path(path).exists()
