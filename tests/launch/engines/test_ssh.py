"""Runs over SSH on real sshds: the keys of each host, the chief's host, copied projects, and who cannot be reached."""

from __future__ import annotations

import os
import re
import signal

import pytest

from dps.transport.clock import now
from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.programs import check_newest_checkpoint, check_no_step_was_lost
from tests.launch.engines.users import LONG, SSHUser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ssh")]


def test_each_host_gets_the_keys_of_its_roles(ssh_user: SSHUser) -> None:
    file = ssh_user.folder / "experiment.yaml"
    file.write_text(file.read_text().replace("hosts: [one, two]", "hosts: [one, two slots=1]"))
    ssh_user.begin()
    folders = list(ssh_user.hosts.temporary.glob("*/dps-*/keys"))
    assert len(folders) == 2
    roles = sorted(sorted({f.name.split("-")[0] for f in folder.glob("*.key")}) for folder in folders)
    assert roles == [["chief", "ps", "worker"], ["ps"]]
    assert "two" in ssh_user.dps("status", "1")
    ssh_user.dps("kill", "1")


@pytest.mark.parametrize("notice", [True, False])
def test_without_the_chiefs_host_the_run_begins_again_from_its_checkpoint(ssh_user: SSHUser, notice: bool) -> None:
    ssh_user.begin("--set", "steps=300", "--set", "pause=0.01")
    if notice:
        os.kill(ssh_user.hosts.host_process("one"), signal.SIGTERM)
    else:
        ssh_user.wait_for_checkpoints(2)
        ssh_user.hosts.vanish("one")
    until(lambda: ssh_user.view().is_over, 60.0)
    said = ssh_user.dps("logs", "1")
    assert ssh_user.view().state == "SUCCEEDED", said
    assert {task["host"] for task in ssh_user.view().tasks.values()} == {"two"}
    if notice:
        check_no_step_was_lost(ssh_user.folder / "runs" / "1", 300)
    else:
        check_newest_checkpoint(ssh_user.folder / "runs" / "1", said)


def test_tasks_end_within_10_s_when_the_way_to_their_keeper_goes(ssh_user: SSHUser) -> None:
    ssh_user.begin(*LONG)
    keeper, began = ssh_user.view().values["keeper"]["pid"], now()
    os.kill(keeper, signal.SIGSTOP)  # it is there, and cannot be heard
    until(lambda: not [pid for name in ("one", "two") for pid in ssh_user.hosts.processes(name)], 12.0)
    assert now() - began < 11.0
    os.kill(keeper, signal.SIGKILL)


def test_a_synchronised_project_runs_in_a_copy_that_is_removed(ssh_user: SSHUser) -> None:
    file = ssh_user.folder / "experiment.yaml"
    file.write_text("sync: true\n" + file.read_text())
    (ssh_user.folder / "ssh" / "large").write_bytes(b"x")
    said = ssh_user.launch()
    assert re.search(rf"begins at 0 in {ssh_user.hosts.temporary}/one/dps-\w+/project", said), said
    assert "BUILDING" in [state for state, _ in ssh_user.view().values["history"]]


def test_who_cannot_be_reached_is_one_line(ssh_user: SSHUser) -> None:
    file, hosts = ssh_user.folder / "experiment.yaml", ssh_user.hosts
    text = file.read_text()

    def check(wanted: str, code: int = 2) -> None:
        said = ssh_user.refusal(code)
        assert wanted in said, said

    for hosts_line, wanted in (
        ("[one, nobody.invalid]", "nobody.invalid: ssh says: Could not resolve hostname"),
        ('["one slots=1"]', "the hosts have 1 slots for 4 tasks"),
        ('["one slots=no"]', "dps: experiment.yaml:1:9: hosts"),
        ("[one, one]", "--on ssh: got one twice"),
        ("[]", "--on ssh: got no hosts"),
    ):
        file.write_text(text.replace("[one, two]", hosts_line))
        check(wanted)
    file.write_text(text)
    hosts.forget()
    check("one: ssh says: Host key verification failed; try: ssh one true")
    hosts.stop()
    check("Connection refused", code=3)
    ssh_user.environ["PATH"] = "/usr/bin/nowhere"
    check("--on ssh: this machine has no ssh")


def test_who_has_another_key_is_refused(ssh_user: SSHUser) -> None:
    ssh_user.hosts.change_user_key()
    said = ssh_user.refusal()
    assert re.fullmatch(r"dps: one: ssh says: .*Permission denied \(publickey\S*\); try: ssh one true", said), said
