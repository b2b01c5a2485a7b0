"""Runs with keys: what each role may do, and what is said to who has no key, another one, or a revoked one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dps
from dps import cli, role
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.calls.functions import ServedFunctions
from dps.coordinator.worker import Worker
from dps.messages.runs import (
    AGENT,
    CHIEF,
    OPERATORS,
    AskCluster,
    AskStats,
    AskStatus,
    ClusterIs,
    Configure,
    EndRun,
    Members,
    Register,
    Restore,
    SaveShard,
    StopTask,
)
from dps.messages.sessions import PS
from dps.transport.current import runtime
from dps.transport.keys import files as key_files
from dps.transport.keys import zap
from dps.transport.keys.keyring import credentials
from dps.transport.message import Message
from tests.in_process import cluster

WAIT_S = 60.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of keys: "all", "other", and those of a machine of one role."""
    made = tmp_path_factory.mktemp("folders")
    found = {name: str(made / name) for name in ("all", "other", "worker", "reader")}
    key_files.new(found["all"])
    key_files.new(found["other"])
    for name in ("worker", "reader"):
        key_files.export(found["all"], [name], found[name])
    return found


@pytest.fixture(scope="module")
def worker(folders: dict[str, str]) -> Iterator[dps.Server]:
    """A run with keys that trains "w", at step 1 or later."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DPS_KEYS", folders["all"])
    with cluster(transport="tcp") as (server,), session(server) as trains:
        trains.push({"w": np.ones(40, np.float32)})
        patch.undo()
        yield server
    patch.undo()


def session(server: dps.Server | str, **settings: object) -> dps.Session:
    start = {"w": np.zeros(40, np.float32)}
    return dps.Session(server, start, optimizer=dps.optim.SGD(1.0), timeout=WAIT_S, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("shared", [True, False])
def test_a_worker_with_the_keys_of_its_machine_trains(
    worker: dps.Server, folders: dict[str, str], shared: bool
) -> None:
    with session(worker.target, keys=folders["worker"], shared_memory=shared) as s:
        before = s.pull()["w"]
        assert s.push({"w": np.ones(40, np.float32)}).accepted
        np.testing.assert_array_equal(s.pull()["w"], before - 1)
        assert s.stats()


@pytest.mark.parametrize("shared", [True, False])
def test_a_reader_reads_and_may_not_write(worker: dps.Server, folders: dict[str, str], shared: bool) -> None:
    with dps.Session(worker.target, keys=folders["reader"], timeout=WAIT_S, shared_memory=shared) as s:
        assert s.pull()["w"].shape == (40,) and s.lookup("w", [1]).shape == (1,)
        for _ in range(2):
            with pytest.raises(dps.PermissionDenied, match=r"got Push of reader; wanted it of worker"):
                s.push({"w": np.ones(40, np.float32)})
        with pytest.raises(dps.PermissionDenied, match=r"got Save of reader"):
            s.save()
        assert s.pull()["w"].shape == (40,)
    with pytest.raises(dps.PermissionDenied, match=r"got variables of a session of client:.*key is that of reader"):
        session(worker.target, keys=folders["reader"])


def test_a_worker_may_not_do_what_the_chief_does(
    worker: dps.Server, folders: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caller = Caller(runtime(), "worker:7", credentials(folders["worker"], "worker"))
    ps = worker.home().runtime and next(iter(session_addresses(caller, worker.target)))
    caller.expect(ps, "ps")
    for address in (ps, worker.target):
        caller.connect(address, b"a ticket that nobody admits")
    forged: list[tuple[str, str, Message]] = [
        (ps, PS, Configure(10**6, {}, 0, {}, [], "/tmp", "")),
        (ps, PS, SaveShard(1, "x", "/tmp", "x")),
        (ps, PS, Members(1, 2**60, [], [], [], 0)),
        (ps, AGENT, StopTask(0, "forged")),
        (worker.target, CHIEF, Register("ps", 0, ps, 1, 10**6, {})),
    ]
    try:
        for address, actor, message in forged:
            with pytest.raises(dps.PermissionDenied, match="of worker" if actor != CHIEF else "with the key of worker"):
                caller.ask(Ref(address, actor), message, WAIT_S)
    finally:
        caller.close()
    with session(worker.target, keys=folders["worker"]) as s:
        assert s.push({"w": np.ones(40, np.float32)}).accepted
    assert caplog.text.count("refused a message from") <= 2, "one line for a peer, in each node"


def pull_for(session: dps.Session, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        session.pull()


def session_addresses(caller: Caller, chief: str) -> list[str]:
    answer = caller.ask(Ref(chief, CHIEF), AskCluster(), WAIT_S)
    assert isinstance(answer, ClusterIs)
    return list(answer.cluster["ps"].values())


@pytest.mark.parametrize("role", ["worker", "reader"])
def test_what_concerns_other_tasks_is_told_to_an_operator_and_not_to_a_session(
    worker: dps.Server, folders: dict[str, str], role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = {each: Caller(runtime(), each, credentials(folders["all"], each)) for each in (role, "operator")}
    found: dict[str, dict[str, dict[str, object]]] = {}
    try:
        (ps,) = session_addresses(asks["operator"], worker.target)
        for each, caller in asks.items():
            caller.expect(ps, "ps")
            message = AskStats() if each == role else AskStatus()
            answers = [caller.ask(Ref(*to), message, WAIT_S) for to in ((worker.target, CHIEF), (ps, PS))]
            found[each] = {name: answer.values for name, answer in zip(("chief", "ps"), answers, strict=True)}  # type: ignore[attr-defined]
            told = caller.ask(Ref(worker.target, CHIEF), AskCluster(), WAIT_S)
            assert isinstance(told, ClusterIs) and told.complete
            assert set(told.cluster) == ({"ps"} if each == "reader" else {"ps", "worker"})
        for to in ((worker.target, CHIEF), (ps, PS)):
            with pytest.raises(dps.PermissionDenied, match=f"got AskStatus of {role}; wanted it of operator"):
                asks[role].ask(Ref(*to), AskStatus(), WAIT_S)
    finally:
        for caller in asks.values():
            caller.close()
    tasks = {"cluster", "waiting", "finished", "given_up", "batches", "progress"}
    assert found[role]["chief"].keys() == found["operator"]["chief"].keys() - tasks
    assert "worker:0" in found["operator"]["ps"]["sessions"] and found[role]["ps"]["sessions"] == {}  # type: ignore[operator]
    if role == "worker":
        only = folders["worker"]
        assert cli.main(["status", "--chief", worker.target, "--keys", only]) == 5
        del os.environ["DPS_KEYS"]
        assert f"{only} has no private key of operator, only of worker" in capsys.readouterr().err


def test_the_stats_of_a_session_have_the_counters_of_that_session_alone(
    worker: dps.Server, folders: dict[str, str]
) -> None:
    with session(worker.target, keys=folders["worker"]) as s, session(worker.target, keys=folders["worker"]) as other:
        assert s.push({"w": np.ones(40, np.float32)}).accepted
        own, others = (each.stats()["ps:0"]["sessions"] for each in (s, other))
        assert [counters["pushes"] for counters in own.values()] == [1]
        assert [counters["pushes"] for counters in others.values()] == [0]
    with dps.Session(worker.target, keys=folders["reader"], timeout=WAIT_S) as reads:
        stats = reads.stats()
        assert (
            stats["chief"]["phase"] == "training" and stats["ps:0"]["step"] >= 1 and len(stats["ps:0"]["sessions"]) == 1
        )


def test_an_operator_asks_how_the_run_does_and_may_not_touch_it(
    worker: dps.Server, folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "--chief", worker.target, "--keys", folders["all"]]) == 0
    assert "run epoch 1" in capsys.readouterr().out
    del os.environ["DPS_KEYS"]  # the command has set it, and monkeypatch would bring it back for later tests
    caller = Caller(runtime(), "operator", credentials(folders["all"], "operator"))
    try:
        with pytest.raises(dps.PermissionDenied, match="got Restore of operator; wanted it of worker"):
            caller.ask(Ref(worker.target, CHIEF), Restore(1, 1, ""), WAIT_S)
    finally:
        caller.close()


@pytest.mark.parametrize(
    ("keys", "says"),
    [("other", "has another key than the chief of"), ("", "if it was started with --keys DIR, give the same")],
)
def test_who_has_no_key_of_the_run_is_told_at_once(
    worker: dps.Server, folders: dict[str, str], keys: str, says: str
) -> None:
    began = time.monotonic()
    with pytest.raises(dps.NotAuthenticated, match=says):
        dps.Session(worker.target, keys=folders[keys] if keys else None, timeout=WAIT_S)
    assert time.monotonic() - began < WAIT_S / 2


def test_a_task_that_is_refused_ends_with_exit_code_5(
    worker: dps.Server, folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with dps.Server(None, "ps", 1, chief=worker.target, keys=folders["other"]) as ps:
        assert ps.join(WAIT_S) == 5 and "has another key than the chief of" in ps.reason
    assert role.main(["--job", "ps", "--task", "1", "--chief", worker.target, "--keys", folders["worker"]]) == 5
    assert "has no private key of ps, only of worker" in capsys.readouterr().err
    assert role.main(["--job", "chief", "--bind", "0.0.0.0:0"]) == 5
    said = capsys.readouterr().err
    assert "`dps keys new DIR`" in said and "--trusted-network" in said


@pytest.mark.parametrize("file", ["chief-1.pub", "ps-1.pub"])
def test_a_folder_without_a_public_key_is_told_by_every_command_with_the_way_to_get_it(
    worker: dps.Server, folders: dict[str, str], tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lacks = str(shutil.copytree(folders["all"], tmp_path / "lacks"))
    os.unlink(os.path.join(lacks, file))
    job = file.partition("-")[0]
    says = f"{lacks} lacks {file}, the public key by which a {job} is known; where all keys are: dps keys export DIR "
    with pytest.raises(dps.NotAuthenticated, match=says):
        session(worker.target, keys=lacks)
    if job == "chief":
        with dps.Server(None, "worker", 9, chief=worker.target, keys=lacks) as server:
            assert server.join(WAIT_S) == 5 and says in server.reason
        for command in (["status", worker.target], ["token", "--chief", worker.target], ["kill", worker.target]):
            assert cli.main([*command, "--keys", lacks]) == 5
            del os.environ["DPS_KEYS"]
            assert says in capsys.readouterr().err
        assert cli.main(["doctor", "--chief", worker.target, "--keys", lacks]) == 1
        del os.environ["DPS_KEYS"]
        assert says in capsys.readouterr().out


def test_keys_belong_to_the_server_of_a_session(worker: dps.Server, folders: dict[str, str]) -> None:
    with pytest.raises(dps.ConfigError, match=r"give them to dps.Server\(keys=...\)"):
        dps.Session(worker, keys=folders["all"])


def test_a_session_whose_key_is_revoked_ends_and_the_others_go_on(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zap, "LOOK_S", 0.05)
    folder, out = str(shutil.copytree(folders["all"], tmp_path / "keys")), str(tmp_path / "out")
    key_files.export(folder, ["reader"], out)
    monkeypatch.setenv("DPS_KEYS", folder)
    with cluster(transport="tcp") as (server,), session(server) as trains:
        trains.push({"w": np.ones(40, np.float32)})
        reader = dps.Session(server.target, keys=out, timeout=WAIT_S)
        assert reader.pull()["w"][0] == -1
        key_files.revoke(folder, "reader")
        with pytest.raises(dps.NotAuthenticated, match=r"refuses the key of reader in .*out: .*was revoked"):
            pull_for(reader, WAIT_S)
        assert trains.push({"w": np.ones(40, np.float32)}).accepted
        assert trains.pull()["w"][0] == -2
        reader.close()


def test_a_worker_that_hosts_the_chief_listens_with_the_keys_of_a_chief(
    folders: dict[str, str], tmp_path: Path
) -> None:
    here = {"ps": [f"ipc://{tmp_path}/ps"], "worker": [f"ipc://{tmp_path}/worker"]}
    with (
        dps.Server(here, "worker", 0, keys=folders["all"]) as worker,
        dps.Server(here, "ps", 0, keys=folders["all"]),
        session(worker) as trains,
    ):
        assert trains.push({"w": np.ones(40, np.float32)}).step == 1
        with dps.Session(worker.target, keys=folders["reader"], timeout=WAIT_S) as reader:
            assert reader.pull()["w"][0] == -1
        trains.close()


@pytest.mark.slow
def test_a_coordinator_with_a_workers_keys_has_workers_run_functions_and_a_reader_may_not(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPS_KEYS", folders["all"])
    with cluster(transport="tcp") as (worker,):
        runtime().spawn("serves", Worker(worker, ServedFunctions(["operator:add"])).run)
        monkeypatch.delenv("DPS_KEYS")
        with dps.Coordinator(worker.target, keys=folders["worker"], timeout=WAIT_S) as coordinator:
            assert coordinator.schedule("operator:add", (1, 2)).fetch() == 3
        with session(worker.target, keys=folders["worker"]) as s, dps.device("/job:worker/task:0"):
            assert s.run("operator:add", 1, 2) == 3
            reads = dps.Session(worker.target, keys=folders["reader"], timeout=WAIT_S)
            with reads, pytest.raises(dps.PermissionDenied, match="who has a worker's key; got a reader's"):
                reads.run("operator:add", 1, 2)
        with dps.Coordinator(worker.target, keys=folders["reader"], timeout=3.0) as coordinator:
            value = coordinator.schedule("operator:add", (1, 2))
            with pytest.raises(dps.DeadlineExceeded, match="who has a worker's key; got a reader's"):
                value.fetch()
        with (
            dps.Server(None, "evaluator", 0, chief=worker.target, keys=folders["all"]) as evaluator,
            dps.Coordinator(evaluator, timeout=3.0) as coordinator,
        ):
            value = coordinator.schedule("operator:add", (1, 2))
            with pytest.raises(dps.DeadlineExceeded, match=f"give dps.Coordinator the chief's.*{worker.target}"):
                value.fetch()


def test_an_operator_ends_a_run_in_order_and_a_worker_may_not(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPS_KEYS", folders["all"])
    with cluster(transport="tcp") as (server,):
        trains = session(server)
        caller = Caller(runtime(), "worker:0", credentials(folders["worker"], "worker"))
        with pytest.raises(dps.PermissionDenied, match="got EndRun of worker; wanted it of operator"):
            caller.ask(Ref(server.target, OPERATORS), EndRun("", True), WAIT_S)
        caller.close()
        runtime().spawn("trains on", lambda: leave_when_told(trains))
        assert cli.main(["kill", server.target, "--keys", folders["all"]]) == 0
        assert capsys.readouterr().out == f"the run of {server.target}: ended\n"
        assert server.join(WAIT_S) == 0


def leave_when_told(session: dps.Session) -> None:
    while not session.should_stop():
        session.push({"w": np.ones(40, np.float32)})
    session.close()


def test_a_session_of_a_ps_reaches_the_other_ps(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with a worker's key and the ticket of its process, whose node came with the key of a ps before."""
    monkeypatch.setenv("DPS_KEYS", folders["all"])
    with dps.Server(None, "chief", 0, bind="127.0.0.1:0", ps=2, workers=1, owned=True) as chief:
        ps = [dps.Server(None, "ps", task, chief=chief.address) for task in range(2)]
        with dps.Server(None, "worker", 0, chief=chief.address) as server, whole(server) as trains:
            trains.push({"w": np.ones(40, np.float32)})
            for each in ps:
                with dps.Session(each, timeout=WAIT_S) as reader:
                    np.testing.assert_array_equal(reader.pull()["w"], -np.ones(40))
            assert trains.push({"w": np.ones(40, np.float32)}).accepted
        for each in ps:
            each.stop()


def whole(server: dps.Server) -> dps.Session:
    """A session whose variable lies on both ps."""
    start, halves = {"w": np.zeros(40, np.float32)}, dps.partition.Fixed(2)
    return dps.Session(server, start, optimizer=dps.optim.SGD(1.0), partitioner=halves, timeout=WAIT_S)


def test_a_reader_uses_no_queue(worker: dps.Server, folders: dict[str, str]) -> None:
    with (
        dps.Server.client(worker.target, folders["reader"]) as reader,
        pytest.raises(dps.PermissionDenied, match="got OpenQueue of reader"),
    ):
        dps.data.queue(reader, "results", timeout=WAIT_S)
