"""A session, `follow`, a coordinator, a strategy and `dps status` take the address of any task of a run with keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dps
from dps import cli
from dps.actors.actor import Actor
from dps.actors.node import Node
from dps.actors.ref import Sender
from dps.calls.functions import ServedFunctions
from dps.coordinator.worker import Worker
from dps.messages.runs import AGENT, CHIEF, AskRun, Register, Registered, RunIs
from dps.transport.current import runtime
from dps.transport.keys import files as key_files
from dps.transport.keys.keyring import credentials
from dps.transport.sockets.addresses import seen_from
from tests.examples.processes import Terminals
from tests.in_process import cluster

WAIT_S = 30.0
START = {"w": np.zeros(3)}


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Where the tasks of a run with this user's own keys are; worker:1 serves `operator:add`, and w is -1."""
    with cluster(1, 2, "tcp") as (worker, serves), dps.Session(worker, START, optimizer=dps.optim.SGD(1.0)) as session:
        session.push({"w": np.ones(3)})
        runtime().spawn("serves", Worker(serves, ServedFunctions(["operator:add"])).run)
        ps = session._connection.peers[0].ref.address
        yield {"chief": worker.target, "ps": ps, "worker": serves.address}


def uses(address: str) -> None:
    """Use a run, in which w is -1, by an address."""
    with dps.Session(address, timeout=WAIT_S) as session:
        assert session.pull()["w"].tolist() == [-1, -1, -1]
    step, values = next(dps.follow(address, pause=0.01, timeout=WAIT_S))
    assert (step, values["w"].tolist()) == (1, [-1, -1, -1])
    with dps.Coordinator(address, timeout=WAIT_S) as coordinator:
        assert coordinator.schedule("operator:add", (1, 2)).fetch() == 3


@pytest.mark.parametrize("task", ["chief", "ps", "worker"])
def test_the_address_of_any_task_will_do(
    addresses: dict[str, str], task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    uses(addresses[task])
    assert cli.main(["status", addresses[task]]) == 0
    assert capsys.readouterr().out.startswith(f"chief at {addresses['chief']}: training")


def test_a_session_of_a_worker_s_address_trains_and_knows_which_worker_was_named(addresses: dict[str, str]) -> None:
    strategy = dps.strategy.ParameterServer(addresses["worker"], "async")
    with strategy.scope():
        variables = strategy.variables(START, optimizer=dps.optim.SGD(1.0))
        assert variables.read()["w"].tolist() == [-1, -1, -1]
    strategy.close()
    with dps.Session(addresses["worker"], timeout=WAIT_S) as session:
        assert session.run("operator:add", 1, 2) == 3, "on worker:1, which the address names"


def test_who_has_keys_of_another_run_is_refused_as_by_the_chief(addresses: dict[str, str], folder: str) -> None:
    for task in ("ps", "worker"):
        with pytest.raises(dps.NotAuthenticated, match="has another key than the chief of"):
            dps.Session(addresses[task], keys=folder, timeout=WAIT_S)


class Liar(Actor):
    """A worker that says that the chief is somewhere else, and answers as a chief."""

    def __init__(self, chief: str = "") -> None:
        self._chief, self.registered = chief, list[Register]()

    def on_AskRun(self, message: AskRun, sender: Sender) -> None:
        self.node.answer(sender, RunIs(self._chief or self.node.address, "worker", 0))

    def on_Register(self, message: Register, sender: Sender) -> None:
        self.registered.append(message)
        self.node.answer(sender, Registered(0))


def test_who_has_a_worker_s_key_is_not_taken_for_the_chief_whatever_address_it_names(folder: str) -> None:
    made, there = [], runtime()
    try:
        for chief in ("", "the other", "not an address"):
            node = Node(there, "127.0.0.1:0", "worker:0", 1, credentials(folder, "worker"))
            liar = Liar(made[0][0].address if chief == "the other" else chief)
            node.host(AGENT, liar)
            node.host(CHIEF, liar)
            node.start()
            made.append((node, liar))
            with pytest.raises(dps.NotAuthenticated, match="has another key than the chief of"):
                dps.Session(node.address, keys=folder, timeout=WAIT_S)
        assert not any(liar.registered for _, liar in made), "nothing but AskRun is sent to who is not the chief"
    finally:
        for node, _ in made:
            node.stop()


@pytest.mark.parametrize(
    ("place", "told", "seen"),
    [
        ("10.0.0.2:5000", "127.0.0.1:2220", "10.0.0.2:2220"),
        ("10.0.0.2:5000", "localhost:2220", "10.0.0.2:2220"),
        ("10.0.0.2:5000", "10.0.0.1:2220", "10.0.0.1:2220"),
        ("127.0.0.1:5000", "127.0.0.1:2220", "127.0.0.1:2220"),
        ("ipc:///run/ps", "ipc:///run/chief", "ipc:///run/chief"),
        ("box:5000", "127.0.0.1:2220", "box:2220"),
    ],
)
def test_a_chief_on_the_loopback_interface_of_a_task_is_on_that_task_s_machine(
    place: str, told: str, seen: str
) -> None:
    assert seen_from(place, told) == seen


TRAINER = """
import sys, numpy as np, dps
with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0), timeout=30
) as session:
    session.push({"w": np.ones(3)})
    print("address", server.address, flush=True)
    while not session.should_stop():
        server.runtime.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "own", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["own keys", "a folder of keys"]
)
def test_with_real_processes_whose_keys_differ_by_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if not own:
        key_files.new(str(tmp_path / "keys"))
        monkeypatch.setenv("DPS_KEYS", str(tmp_path / "keys"))
    role = ("-m", "dps.role")
    with Terminals(tmp_path) as terminals:
        terminals.start("chief", *role, "--job", "chief", "--bind", "127.0.0.1:0", "--owned")
        chief = terminals.line_with("chief", "dps chief at ").rpartition(" ")[2]
        at = ("--chief", chief)
        terminals.start("ps", *role, "--job", "ps", *at)
        ps = terminals.line_with("ps", "dps ps:0 at ").rpartition(" ")[2]
        terminals.start("worker", *role, "--job", "worker", *at, "--program", "train.py")
        worker = terminals.line_with("worker", "address ").rpartition(" ")[2]
        terminals.start("serves", *role, "--job", "worker", *at, "--serve", "operator:add")
        serves = terminals.line_with("serves", "dps worker:1 serves").rpartition(" ")[2]
        for address in (chief, ps, worker, serves):
            uses(address)
            assert cli.main(["status", "--chief", address]) == 0
            assert f"chief at {chief}: training" in capsys.readouterr().out
        assert cli.main(["kill", chief]) == 0
        codes, said = terminals.ended()
    assert not any(codes.values()), said
    os.environ.pop("DPS_KEYS", None)
