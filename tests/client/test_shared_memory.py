"""Shared memory between a session and a ps on one machine: the same results, in place, and safe from each other."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import ProtocolError, Unavailable
from dps.messages.sessions import PS, SHARED, Push
from dps.transport.current import runtime
from dps.transport.shared_memory import SharedMemory
from tests.in_process import cluster, on_all
from tests.tuned import tune

SIZE = 40_000


def first_values() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {"a": rng.normal(size=(200, 200)).astype(np.float32), "b": [np.zeros(77, np.float64), np.ones(5, np.int32)]}


def gradients(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(100 + step)
    return {"a": rng.normal(size=(200, 200)).astype(np.float32), "b": [rng.normal(size=77), None]}


def session(server: Any, **settings: Any) -> dps.Session:
    return dps.Session(
        server, **{"params": first_values(), "optimizer": dps.optim.Adam(0.1), "timeout": 60, **settings}
    )


def lane_of(session: dps.Session) -> Any:
    return session._connection.peers[0].lane


def trained(ps: int, shared: bool, update: Any, workers: int = 2) -> Any:
    def work(server: dps.Server) -> Any:
        with session(server, update=update, shared_memory=shared) as s:
            assert lane_of(s).on == shared
            values = s.pull()
            for step in range(4):
                assert np.isfinite(values["a"]).all()
                values = s.step(gradients(10 * step + server.task))
            return values

    with cluster(ps, workers, "ipc", Path(os.environ.get("TMPDIR", "/tmp"))) as servers:
        return on_all(servers, work)[0]


@pytest.mark.parametrize("ps", [1, 2])
def test_the_bits_are_those_of_the_socket(ps: int) -> None:
    through_memory = trained(ps, True, dps.SyncReplicas())
    through_socket = trained(ps, False, dps.SyncReplicas())
    np.testing.assert_array_equal(through_memory["a"], through_socket["a"])
    np.testing.assert_array_equal(through_memory["b"][0], through_socket["b"][0])


def test_small_models_and_those_who_do_not_want_it_use_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, shard_nbytes=1 << 10)
    with cluster(1, 1) as (server,), session(server, params={"a": np.zeros(9, np.float32)}) as s:
        assert not lane_of(s).on
    with cluster(1, 1) as (server,), session(server, shared_memory=False) as s:
        assert not lane_of(s).on


def test_values_are_viewed_where_the_ps_wrote_them_and_cannot_be_written(tmp_path: Path) -> None:
    reader = """
import sys, numpy as np, dps
with dps.Session(sys.argv[1], timeout=60) as s, s.view() as values:
    print(sum(values["a"][0]), values["a"].flags.writeable, s._connection.peers[0].lane.on)
    print(type(values["a"].base).__name__, flush=True)
"""
    with cluster(1, 1) as (server,), session(server) as s:
        said = subprocess.check_output([sys.executable, "-c", reader, server.target], text=True).split()
        assert float(said[0]) == pytest.approx(float(first_values()["a"][0].sum()), rel=1e-5)
        assert said[1:3] == ["False", "True"]
        assert s.stats()["ps:0"]["leases"] == 0


@pytest.fixture
def counts_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a ps keeps few versions of, so that its readers return them at once."""
    tune(monkeypatch, small_nbytes=0)


def test_who_has_read_a_small_shard_returns_it_with_the_next_pull_and_finds_many_versions_kept() -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        readers = [session(server.target) for _ in range(8)]
        try:
            for step, reader in enumerate(readers):
                reader.pull()
                assert s.push(gradients(step)).accepted
            assert s.stats()["ps:0"]["leases"] == 8 and s.stats()["ps:0"]["copied_pulls"] == 0
            for reader in readers:
                reader.pull()
                assert reader.pull(if_newer_than=reader.version) is None
            assert s.stats()["ps:0"]["leases"] == 0
        finally:
            for reader in readers:
                reader.close()


@pytest.mark.usefixtures("counts_as_large")
def test_a_pull_into_the_callers_arrays_holds_nothing_afterwards() -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        mine = {"a": np.zeros((200, 200), np.float32), "b": [np.zeros(77), np.zeros(5, np.int32)]}
        address = mine["a"].ctypes.data
        assert s.pull(out=mine) is mine and mine["a"].ctypes.data == address
        np.testing.assert_array_equal(mine["a"], first_values()["a"])
        with pytest.raises(ValueError, match="out has"):
            s.pull(out={**mine, "a": np.zeros(3, np.float32)})
        assert s.stats()["ps:0"]["leases"] == 0


def test_a_gradient_that_was_filled_in_place_may_be_filled_again_at_once() -> None:
    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        mine = s.gradients()
        for value in (1.0, 2.0, 3.0):
            mine["a"][...] = value
            mine["b"][0][...] = value
            assert s.push({"a": mine["a"], "b": [mine["b"][0], None]}).accepted
        np.testing.assert_allclose(s.pull()["a"], first_values()["a"] - 6.0, rtol=1e-5)


def test_pushes_that_overtake_each_other_do_not_share_a_buffer() -> None:
    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        replies = [s.push_async(gradients(step)) for step in range(6)]
        assert all(reply.result().accepted for reply in replies)
        total = sum(gradients(step)["a"] for step in range(6))
        np.testing.assert_allclose(s.pull()["a"], first_values()["a"] - total, rtol=1e-4, atol=1e-4)


def test_nan_in_shared_memory_is_refused_as_elsewhere() -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        bad = gradients(0)
        bad["a"][3, 4] = np.nan
        with pytest.raises(ValueError, match=r"the gradient of a has NaN or infinite values \(first at element 604\)"):
            s.push(bad)
        assert s.push(gradients(0)).accepted


HOSTILE: dict[str, Any] = {
    "beyond its end": lambda name, n: [name, 64],
    "before its beginning": lambda name, n: [name, -64],
    "not aligned": lambda name, n: [name, 8],
    "another size than it has": lambda name, n: [[*name[:3], 4 * n], 0],
    "another process": lambda name, n: [[1, *name[1:]], 0],
    "another file": lambda name, n: [[name[0], 0, *name[2:]], 0],
    "no name": lambda name, n: ["x", 0],
    "no numbers": lambda name, n: [[None, 1.5, "a", {}], 0],
    "nothing": lambda name, n: [],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_push_that_names_other_memory_is_refused_and_the_ps_lives(what: str) -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        layout = s._connection.agreed.plan.layouts[0]
        memory = SharedMemory(layout.nbytes)
        caller = Caller(runtime(), "hostile", s._connection.home.keys)
        caller.incarnation = s._connection.caller.incarnation
        caller.expect(s._connection.peers[0].ref.address, PS)
        caller.connect(s._connection.peers[0].ref.address, s._connection.home.ticket)
        place = HOSTILE[what](memory.name, layout.nbytes)
        push = Push(s._connection.membership.epoch, 1, 0, 0, SHARED, layout.gradient_nbytes, [], place)
        with pytest.raises((ProtocolError, Unavailable)):
            caller.ask(Ref(s._connection.peers[0].ref.address, PS), push, 5.0)
        caller.close()
        assert s.push(gradients(0)).accepted


@pytest.mark.usefixtures("counts_as_large")
def test_a_stalled_reader_keeps_its_version_and_holds_nobody_up() -> None:
    with cluster(1, 1) as (server,), session(server) as s, session(server.target) as stalled:
        with stalled.view() as values:
            before = values["a"].copy()
            for step in range(6):
                assert s.push(gradients(step)).accepted
                assert not np.array_equal(s.pull()["a"], before)
            np.testing.assert_array_equal(values["a"], before)
        assert s.stats()["ps:0"]["leases"] == 0


@pytest.mark.usefixtures("counts_as_large")
def test_many_stalled_readers_are_sent_copies_when_no_buffer_remains() -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        readers = [session(server.target) for _ in range(5)]
        try:
            held = []
            for step, reader in enumerate(readers):
                view = reader.view()
                held.append((view, view.__enter__()))
                assert s.push(gradients(step)).accepted
            versions = [float(values["a"][0, 0]) for _, values in held]
            assert len(set(versions)) == len(versions)
            assert s.stats()["ps:0"]["copied_pulls"] > 0
            for view, _ in held:
                view.__exit__(None, None, None)
        finally:
            for reader in readers:
                reader.close()


KILLED = """
import os, signal, sys, dps
with dps.Session(sys.argv[1], timeout=60) as s, s.view() as values:
    print("reads", flush=True)
    signal.pause()
"""


def test_a_reader_that_is_killed_while_it_reads_leaves_nothing_held() -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        reader = subprocess.Popen([sys.executable, "-c", KILLED, server.target], stdout=subprocess.PIPE, text=True)
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        reader.send_signal(signal.SIGKILL)
        reader.wait(10)
        reader.stdout.close()
        clock = runtime()
        end = clock.now() + 20
        while s.stats()["ps:0"]["leases"] and clock.now() < end:
            clock.sleep(0.05)
        assert s.stats()["ps:0"]["leases"] == 0
        for step in range(4):
            assert s.push(gradients(step)).accepted


def test_where_no_memory_is_to_be_had_values_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: Any, nbytes: int) -> Any:
        raise Unavailable(f"{nbytes} bytes of shared memory are not to be had")

    with cluster(1, 1) as (server,), session(server) as s:
        assert lane_of(s).on
        monkeypatch.setattr(type(runtime()), "share", none_left)
        with s.view():
            assert s.push(gradients(0)).accepted  # needs a second buffer, and a run for the gradient
        np.testing.assert_array_equal(s.pull()["b"][1], 1)


def test_memory_that_cannot_be_read_any_more_is_given_up_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        lane = lane_of(s)
        assert lane.on

        def gone(name: object) -> Any:
            raise Unavailable("too many open files")

        monkeypatch.setattr(lane, "attach", gone)
        with caplog.at_level(logging.WARNING, "dps"):
            for step in range(3):
                s.step(gradients(step))
        assert not lane.on
        told = [r.message for r in caplog.records if "shared memory" in r.message]
        assert len(told) == 1 and "sockets are used" in told[0]


def test_a_ps_that_cannot_read_the_workers_memory_gets_the_gradient_over_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dps.ps.intake.borrowed import Borrowed

    def unreachable(self: Borrowed, parts: list[object], nbytes: int) -> Any:
        raise Unavailable("no such process here")

    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        monkeypatch.setattr(Borrowed, "run", unreachable)
        for _ in range(3):
            assert s.push({"a": np.ones((200, 200), np.float32), "b": [np.ones(77), None]}).accepted
        np.testing.assert_allclose(s.pull()["a"], first_values()["a"] - 3.0, rtol=1e-5)


def test_nothing_is_left_in_shared_memory_or_among_the_descriptors() -> None:
    def shared_files() -> list[str]:
        found = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                found.append(os.readlink(f"/proc/self/fd/{number}"))
        return [name for name in found if "memfd:dps" in name]

    gc.collect()
    before = len(shared_files())
    with cluster(1, 1) as (server,), session(server) as s:
        s.step(gradients(0))
        assert len(shared_files()) > before
    del server, s
    gc.collect()
    assert len(shared_files()) <= before
