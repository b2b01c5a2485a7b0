"""`dps keys rotate` and `revoke` while tasks run on three hosts: whatever comes first, everybody still talks."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from dps.errors import ConfigError
from dps.transport.endpoint import Delivery, Endpoint, Refused
from dps.transport.keys import files as key_files
from dps.transport.keys import keyring as keys
from dps.transport.keys.keyring import credentials
from dps.transport.message import ROLES
from tests.transport.keys.conftest import LATE_S, Make

SOON_S = 20.0
LINKS = [("worker", "chief"), ("ps", "chief"), ("chief", "worker"), ("chief", "ps"), ("worker", "ps")]


class Hosts:
    """A chief, a ps and a worker, each with the keys of its host: all of them, or an export of its role."""

    def __init__(self, make: Make, folder: str, tmp_path: Path) -> None:
        self._make, self._out = make, str(tmp_path / "out")
        self.folders = {"chief": folder, "ps": str(tmp_path / "ps"), "worker": str(tmp_path / "worker")}
        for role in ("ps", "worker"):
            key_files.export(folder, [role], self.folders[role])
        self._nodes: dict[str, Endpoint] = {}
        for role in self.folders:
            self.restart(role)

    def restart(self, role: str) -> None:
        """The task is another process now, at the address that it had."""
        before = self._nodes.get(role)
        if before is not None:
            before.close(0.0)
        credentials(self.folders[role], role).folder.refused.clear()  # type: ignore[union-attr]
        self._nodes[role] = self._make(self.folders[role], role, before.address if before else "127.0.0.1:0")
        for of, node in self._nodes.items():
            for other, peer in self._nodes.items():
                if (of, other) in LINKS:
                    node.expect(peer.address, other)

    def copy(self, role: str) -> None:
        """Export the keys anew and copy them file by file, the last ones first, as some tool does."""
        shutil.rmtree(self._out, ignore_errors=True)
        key_files.export(self.folders["chief"], [role], self._out)
        for name in sorted(os.listdir(self._out), reverse=True):
            shutil.copy(os.path.join(self._out, name), self.folders[role])
            self.turn(0.005)

    def revoke(self, host: str, *roles: str) -> None:
        for role in roles:
            key_files.revoke(self.folders[host], role)

    def do(self, step: str) -> None:
        """A step is a verb and the host of a role: "copy ps"."""
        verb, _, role = step.partition(" ")
        if verb == "rotate":
            key_files.rotate(self.folders["chief"])
        elif verb == "copy":
            self.copy(role)
        elif verb == "restart":
            self.restart(role)
        else:
            own = ROLES if role == "chief" else (role,)
            self.revoke(role, *own)

    def turn(self, seconds: float) -> set[str]:
        """Have all tasks receive and answer for a while; returns those that got an answer."""
        deadline, got = time.monotonic() + seconds, set[str]()
        while time.monotonic() < deadline:
            for role, node in self._nodes.items():
                event = node.receive(0.001)
                assert not isinstance(event, Refused), (role, event)
                if isinstance(event, Delivery) and isinstance(event.route, str):
                    got.add(f"{role} {event.route}")
                elif isinstance(event, Delivery):
                    node.send(event.route, b"answer")
        return got

    def all_talk(self) -> None:
        left = {f"{of} {self._nodes[to].address}" for of, to in LINKS}
        deadline = time.monotonic() + SOON_S
        while left:
            assert time.monotonic() < deadline, left
            for each in left:
                of, _, address = each.partition(" ")
                self._nodes[of].send(address, b"question")
            left -= self.turn(0.02)


@pytest.fixture
def hosts(make: Make, folder: str, tmp_path: Path) -> Hosts:
    return Hosts(make, folder, tmp_path)


ORDERS = [
    "rotate, restart worker, restart chief, restart ps, copy worker, copy ps, revoke chief",
    "rotate, copy ps, restart ps, copy worker, restart worker, restart chief, revoke chief, restart ps, restart worker",
    "rotate, copy worker, copy ps, revoke worker, revoke ps, restart worker, restart chief, revoke chief",
    "rotate, copy worker, copy ps, revoke ps, revoke chief, restart ps, revoke worker, restart chief",
    "rotate, copy ps, copy worker, revoke chief, copy worker, copy ps, rotate, copy worker, restart chief, copy ps",
]


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_in_each_order_everybody_talks_after_each_step_and_nobody_is_refused(hosts: Hosts, order: str) -> None:
    hosts.all_talk()
    for step in order.split(", "):
        hosts.do(step)
        hosts.turn(0.06)
        hosts.all_talk()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["chief", "ps", "worker"])
def test_one_role_alone_is_revoked_on_the_chiefs_host(hosts: Hosts, role: str) -> None:
    for step in ("rotate", "copy ps", "copy worker"):
        hosts.do(step)
    hosts.all_talk()
    hosts.revoke("chief", role)
    hosts.turn(LATE_S + 0.1)
    hosts.all_talk()
    for of in ("ps", "worker"):
        hosts.restart(of)
    hosts.all_talk()


def test_a_process_that_looks_at_its_keys_first_expects_the_revoked_one_of_a_listener_for_a_while(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another process of the chief's host, which has the same folder, does up to 2 s before the ps hears of it."""
    for step in ("rotate", "copy ps", "copy worker"):
        hosts.do(step)
    monkeypatch.setattr(keys, "LATE_S", SOON_S)
    early = hosts.folders["worker"]
    for kind in ("ps-1.pub", "chief-1.pub"):
        os.unlink(os.path.join(early, kind))
    hosts.turn(0.1)
    hosts.restart("worker")
    hosts.all_talk()
    hosts.revoke("chief", "chief", "ps")
    hosts.turn(0.1)
    hosts.all_talk()


def test_a_host_that_has_an_export_does_not_revoke_what_others_still_use(hosts: Hosts) -> None:
    hosts.do("rotate")
    hosts.do("copy worker")
    with pytest.raises(ConfigError, match=r"is an export without the private key of ps.*then delete .*/ps-1.pub"):
        hosts.revoke("worker", "ps")
    hosts.all_talk()


def test_files_that_are_read_while_they_are_copied_are_read_again(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = credentials(folder, "worker")
    assert known is not None
    half = Path(folder, "worker-2.key")
    half.touch(0o600)
    assert not known.folder.changed() and not known.folder.changed()
    assert caplog.text.count("the keys stay as they were") == 1
    half.write_text(Path(folder, "ps-1.key").read_text())
    assert known.folder.changed() and len(known.pairs) == 2
