"""A session against a running cluster in this process: what it does, and what it says to bad input."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.checkpoint import MemoryStorage
from dps.errors import CheckpointError, ConfigError, DeadlineExceeded, Unavailable
from dps.transport.current import runtime
from dps.transport.wire import Envelope, encode
from tests.in_process import cluster, on_all
from tests.tuned import tune


@pytest.fixture
def server() -> Iterator[dps.Server]:
    with cluster(ps=2, workers=1, transport="inproc") as (worker,):
        yield worker


def params() -> dict[str, Any]:
    return {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "b": [np.zeros(2), dps.Variable(np.int64(7))]}


def ones() -> dict[str, Any]:
    return {"w": np.ones((3, 2), np.float32), "b": [np.ones(2), None]}


def session(server: Any, **settings: Any) -> dps.Session:
    return dps.Session(server, params(), **{"optimizer": dps.optim.SGD(0.5), "timeout": 60, **settings})


# -- what it does ---------------------------------------------------------------------------------------------


def test_pull_gives_the_same_nesting_and_the_callers_own_arrays(server: dps.Server) -> None:
    with session(server) as s:
        first = s.pull()
        first["w"][:] = 99
        second = s.pull()
    assert isinstance(second["b"], list) and second["b"][1] == 7
    np.testing.assert_array_equal(second["w"], params()["w"])
    assert second["w"].dtype == np.float32 and second["b"][0].dtype == np.float64


@pytest.mark.parametrize("shared", [True, False])
def test_pulls_on_their_way_together_bring_arrays_of_their_own(shared: bool) -> None:
    start = {f"v{i}": np.zeros(20_000, np.float32) for i in range(3)}
    with (
        cluster(transport="tcp") as (worker,),
        dps.Session(worker, start, optimizer=dps.optim.SGD(1.0), timeout=30, shared_memory=shared) as s,
    ):
        first = s.pull_async()
        s.push({name: np.ones_like(value) for name, value in start.items()})
        second = s.pull_async()
        after, before = second.result(), first.result()
        assert {value.max() for value in before.values()} == {0.0}
        assert {value.max() for value in after.values()} == {-1.0}


def test_push_applies_and_counts_the_step(server: dps.Server) -> None:
    with session(server) as s:
        s.pull()
        push = s.push(ones(), loss=0.25)
        assert (push.step, push.accepted, push.staleness) == (1, True, 0)
        np.testing.assert_array_equal(s.pull()["w"], params()["w"] - np.float32(0.5))


def test_prefetched_values_are_those_from_before_the_last_push(server: dps.Server) -> None:
    with session(server) as s:
        seen, pushes = [], []
        for values in s.prefetch():
            seen.append(float(values["w"][0, 0]))
            pushes.append(s.push(ones()))
            if len(seen) == 4:
                s.request_stop()
        assert seen == [0.0, 0.0, -0.5, -1.0]
        assert [push.staleness for push in pushes] == [0, 1, 1, 1]
        assert s.pull(["w"])["w"][0, 0] == -2.0  # nothing is left in the way


def test_prefetch_is_refused_in_sync(server: dps.Server) -> None:
    with session(server, update="sync") as s, pytest.raises(ConfigError, match="prefetch in sync mode"):
        s.prefetch()


def test_missing_keys_and_none_mean_no_gradient(server: dps.Server) -> None:
    with session(server) as s:
        s.push({"b": [np.ones(2), None]})
        values = s.pull()
    np.testing.assert_array_equal(values["w"], params()["w"])
    np.testing.assert_array_equal(values["b"][0], [-0.5, -0.5])


def test_step_is_push_and_pull(server: dps.Server) -> None:
    with session(server) as s:
        values = s.step(ones())
        np.testing.assert_array_equal(values["w"], params()["w"] - np.float32(0.5))
        assert s.global_step == 1


@pytest.mark.thinned
@pytest.mark.parametrize("shared", [True, False], ids=["memory", "sockets"])
@pytest.mark.parametrize("small", [True, False], ids=["at once", "streams"])
@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("update", ["async", "sync", dps.Local(2)], ids=["async", "sync", "local"])
def test_a_step_writes_to_the_callers_arrays_what_it_would_return(
    monkeypatch: pytest.MonkeyPatch, update: Any, ps: int, small: bool, shared: bool
) -> None:
    if not small:
        tune(monkeypatch, small_nbytes=1)
    rng = np.random.default_rng(5)
    tree = {
        "w": rng.normal(size=(300, 40)).astype(np.float32),
        "b": [rng.normal(size=9), rng.normal(size=3).astype(np.float16)],
    }
    made = []
    for writes in (False, True):
        own = {"w": np.empty((300, 40), np.float32), "b": [np.empty(9), np.empty(3, np.float16)]} if writes else None
        with (
            cluster(ps, 1) as (worker,),
            dps.Session(
                worker, tree, optimizer=dps.optim.Adam(0.1), update=update, timeout=30, shared_memory=shared
            ) as s,
        ):
            found = []
            for count in range(6):
                values = s.step({"w": tree["w"] * count, "b": [np.ones(9), np.ones(3, np.float16)]}, out=own)
                assert own is None or values is own
                found.append([np.array(values["w"]), *map(np.array, values["b"])])
            made.append(found)
            np.testing.assert_array_equal(s.pull()["w"], found[-1][0])
    for plain, written in zip(*made, strict=True):
        for one, other in zip(plain, written, strict=True):
            np.testing.assert_array_equal(one, other)


def test_nothing_is_pushed_by_a_step_whose_out_does_not_fit(server: dps.Server) -> None:
    with session(server) as s:
        values = s.step(ones())
        for bad, why in (
            ({"w": values["w"]}, "out has nothing for b/0"),
            ({**values, "w": values["w"].astype(np.float64)}, "out has float64"),
            ({**values, "b": [np.zeros(3), values["b"][1]]}, r"wanted an array of float64 \(2,\)"),
        ):
            with pytest.raises(ValueError, match=why):
                s.step(ones(), out=bad)
            with pytest.raises(ValueError, match=why):
                s.pull(out=bad)
        assert s.global_step == 1
        np.testing.assert_array_equal(s.pull()["w"], values["w"])


def test_names_out_and_if_newer_than(server: dps.Server) -> None:
    with session(server) as s:
        only = s.pull(names=["b/0"])
        assert list(only) == ["b"] and list(only["b"]) == ["0"]
        out = params()
        out["b"][1] = np.array(0)
        assert s.pull(out=out) is out and out["b"][1] == 7
        s.pull()
        version = s.version
        assert s.pull(if_newer_than=version) is None
        s.push({"b": [np.ones(2), None]})
        values = s.pull(if_newer_than=version)
        np.testing.assert_array_equal(values["b"][0], [-0.5, -0.5])
        np.testing.assert_array_equal(values["w"], params()["w"])
        assert s.version != version and s.pull(if_newer_than=s.version) is None


@pytest.mark.parametrize("update", ["async", "local:2"])
def test_one_text_is_no_list_of_names(update: str) -> None:
    """Its letters were taken as names: `names="ab"` pulled a and b."""
    values = {"a": np.zeros(1), "b": np.ones(1), "ab": np.ones(2)}
    with cluster() as (server,), dps.Session(server, values, optimizer=dps.optim.SGD(1.0), update=update) as s:
        for call in (s.pull, s.pull_async):
            with pytest.raises(TypeError, match=r"names: got 'ab', wanted a list of names, such as \['ab'\]"):
                call("ab")
        assert list(s.pull(["ab"])) == ["ab"]


def test_if_newer_than_is_a_version_and_not_for_published_ones(server: dps.Server) -> None:
    with session(server) as s:
        with pytest.raises(TypeError, match="got if_newer_than=5, wanted a session.version"):
            s.pull(if_newer_than=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a published version does not change; leave if_newer_than out"):
            s.pull(if_newer_than=s.version, published=s.publish())


def test_async_replies(server: dps.Server) -> None:
    with session(server) as s:
        replies = [s.push_async(ones()) for _ in range(20)]
        values = s.pull_async()
        assert [r.result().accepted for r in replies] == [True] * 20
        assert replies[0].done() and replies[0].accepted is True
        assert values.result()["b"][1] == 7
        np.testing.assert_array_equal(s.pull()["b"][0], [-10, -10])


def test_sparse_rows_sum_duplicates_and_are_looked_up(server: dps.Server) -> None:
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    tree = {"table": dps.Variable(table, sparse=True), "w": np.zeros(2, np.float32)}
    with dps.Session(server, tree, optimizer=dps.optim.SGD(1.0), partitioner=dps.partition.Fixed(3), timeout=60) as s:
        np.testing.assert_array_equal(s.lookup("table", [9, 0, 9]), table[[9, 0, 9]])
        s.push({"table": dps.Rows([4, 0, 4], np.ones((3, 2), np.float32))})
        wanted = table.copy()
        wanted[4] -= 2
        wanted[0] -= 1
        np.testing.assert_array_equal(s.pull()["table"], wanted)


def test_view_is_read_only_in_place_and_valid_in_the_block(server: dps.Server) -> None:
    with session(server) as s:
        with s.view() as values:
            assert not values["w"].flags.writeable
            np.testing.assert_array_equal(values["w"], params()["w"])
            s.push(ones())
            np.testing.assert_array_equal(values["w"], params()["w"])
        with s.view() as values:
            np.testing.assert_array_equal(values["w"], params()["w"] - np.float32(0.5))


def test_gradients_are_arrays_to_fill(server: dps.Server) -> None:
    with session(server) as s:
        grads = s.gradients()
        grads["w"][:] = 2
        grads["b"][0][:] = 4
        grads["b"][1] = None
        s.push(grads)
        np.testing.assert_array_equal(s.pull()["b"][0], [-2, -2])


def test_a_reader_takes_the_layout_that_is_there(server: dps.Server) -> None:
    with session(server) as s, dps.Session(server.target, timeout=60) as reader:
        s.push(ones())
        np.testing.assert_array_equal(reader.pull()["b"]["0"], [-0.5, -0.5])
        with pytest.raises(ValueError, match="not trained"):
            reader.push({"b": {"1": np.ones(())}})


def test_running_out_of_data_is_a_good_end(server: dps.Server) -> None:
    ended: list[str] = []

    class End(dps.Hook):
        def end(self, session: Any) -> None:
            ended.append("end")

    data = iter([1, 2])
    with session(server, hooks=[End()]) as s:
        while not s.should_stop():
            next(data)
            s.push(ones())
    assert ended == ["end"]


def test_async_drops_what_is_too_old() -> None:
    with cluster(1, 2, "inproc", update=dps.Async(max_staleness=1)) as (one, two), session(one) as first:
        with session(two) as second:
            second.pull()
            first.pull()
            for _ in range(3):
                first.step(ones())
            push = second.push(ones())
        assert (push.accepted, push.staleness) == (False, 3)


# -- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grads", "words"),
    [
        (np.ones((4, 3)), r"push wants gradients for \{'w', .*\}; got one array of shape \(4, 3\)"),
        ({"nope": np.ones(2)}, "nope.*no variable.*w"),
        ({"w": np.ones((3, 3), np.float32)}, r"w has shape \(3, 3\).*\(3, 2\)"),
        ({"w": np.ones((3, 2))}, "w is float64.*float32.*astype"),
        ({"b": [np.ones(2), np.int64(1)]}, "b/1.*not trained"),
        ({"w": dps.Rows([3], np.ones((1, 2), np.float32))}, "row 3 of w is out of range; wanted 0 to 2"),
        ({"w": dps.Rows([0.5], np.ones((1, 2), np.float32))}, "integers"),
        ({"w": "text"}, "w is str"),
        ({"w": np.full((3, 2), np.nan, np.float32)}, "w has NaN"),
    ],
)
def test_a_bad_gradient_is_one_clear_error_and_applies_nothing(server: dps.Server, grads: Any, words: str) -> None:
    with session(server) as s:
        with pytest.raises((ValueError, TypeError), match=words):
            s.push(grads)
        assert s.push(ones()).accepted
        np.testing.assert_array_equal(s.pull()["w"], params()["w"] - np.float32(0.5))


@pytest.mark.parametrize("mode", [dps.Async(), dps.SyncReplicas(), dps.Bounded(1)])
def test_nan_is_refused_by_the_ps_counted_and_uses_up_its_number(mode: Any) -> None:
    with cluster(1, 1, "inproc") as (server,), session(server, update=mode) as s:
        bad = {"w": np.full((3, 2), np.inf, np.float32)}
        with pytest.raises(ValueError, match="w has NaN or infinite"):
            s.push(bad)
        assert s.push(ones()).accepted
        assert s.stats()["ps:0"]["refused"] == 1 and s.stats()["ps:0"]["applied"] == 1


def test_sync_goes_on_without_a_refused_gradient() -> None:
    def work(server: dps.Server) -> list[bool]:
        with session(server, update=dps.SyncReplicas()) as s:
            found = []
            for step in range(3):
                value = np.nan if (server.task, step) == (1, 1) else 1.0
                try:
                    found.append(s.push({"w": np.full((3, 2), value, np.float32)}).accepted)
                except ValueError:
                    found.append(False)
            assert s.global_step == 3
            return found

    with cluster(2, 2) as servers:
        assert on_all(servers, work) == [[True, True, True], [True, False, True]]


def test_nan_passes_by_a_switch() -> None:
    with cluster(1, 1, "inproc") as (server,), session(server, check_finite=False) as s:
        assert s.push({"w": np.full((3, 2), np.nan, np.float32)}).accepted
        assert np.isnan(s.pull()["w"]).all()


def test_a_session_that_does_not_fit_the_run_names_both(server: dps.Server) -> None:
    with session(server, update=dps.SyncReplicas()):
        for other, words in (
            ({"params": {"w": np.zeros((3, 2), np.float32)}}, "only one of the two has .*b/0"),
            (
                {"params": {**params(), "w": np.zeros((4, 2), np.float32)}},
                r"its w is .*\(4, 2\), the run's is .*\(3, 2\)",
            ),
            ({"optimizer": dps.optim.Adam(0.1)}, "optimizer of w.*Adam.*SGD"),
            ({"update": dps.Async()}, "Async.*SyncReplicas"),
        ):
            settings = {"params": params(), "optimizer": dps.optim.SGD(0.5), "timeout": 60, **other}
            with pytest.raises(ConfigError, match=words):
                dps.Session(server.target, **settings)


def test_bad_params_and_settings(server: dps.Server) -> None:
    with pytest.raises(ValueError, match="no optimizer for w"):
        dps.Session(server, params(), timeout=60)
    with pytest.raises(ValueError, match="cannot be a name"):
        dps.Session(server, {"a/b": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), timeout=60)
    with pytest.raises(ValueError, match="no arrays"):
        dps.Session(server, {}, optimizer=dps.optim.SGD(1.0), timeout=60)
    with pytest.raises(ValueError, match="the first step could not finish"):
        dps.SyncReplicas(4, 2, initial_tokens=1)
    with session(server) as s:
        s.close()
        with pytest.raises(ValueError, match="closed"):
            s.pull()


def test_addresses() -> None:
    with cluster(1, 1) as (worker,):
        with pytest.raises(Unavailable, match=worker.address):
            dps.Server({"ps": [worker.address], "worker": ["127.0.0.1:1"]}, "ps", 0)
        with pytest.raises(ValueError, match="HOST:PORT"):
            dps.Server({"ps": ["nowhere"]}, "ps", 0)
        with pytest.raises(ValueError, match="evaluator"):
            dps.Server({"ps": ["127.0.0.1:0"]}, "evaluator", 0)
        with pytest.raises(dps.NotAuthenticated, match="keys"):
            dps.Server({"ps": ["0.0.0.0:0"], "worker": ["127.0.0.1:1"]}, "ps", 0)
    with pytest.raises(DeadlineExceeded, match=r"127\.0\.0\.1:9.*did not answer"):
        dps.Session("127.0.0.1:9", timeout=0.3)


def test_a_wait_names_who_is_missing() -> None:
    def train(server: Any, update: str) -> None:
        if server.task == 1:
            server.wait_joined(server.runtime.now() + 60)
        if server.task == 0 or update != "sync":
            with session(server, update=update) as s:
                server.runtime.sleep(1.0)  # until both are open, where both open one
                if server.task == 0:
                    if update != "sync":
                        s.push(ones())
                    with pytest.raises(DeadlineExceeded, match="waits for worker:1"):
                        s.push(ones(), timeout=3.0) if update == "sync" else s.pull(timeout=3.0)
                server.runtime.sleep(5.0)
        server.runtime.sleep(10.0)

    for update in ("sync", "bounded:0"):
        assert not dps.simulate(train, update, workers=2).errors


def test_another_protocol_version_is_told(server: dps.Server) -> None:
    import msgpack

    from dps.actors.answers import Failed
    from dps.messages.runs import CHIEF, CloseSession
    from dps.transport.endpoint import Delivery
    from dps.transport.wire import decode

    header, _ = encode(Envelope(CloseSession(1, "", "worker", 0, ""), CHIEF, 5, "old", 0))
    parts = msgpack.unpackb(header)
    parts[0] = 99
    endpoint = runtime().endpoint(None)
    endpoint.send(server.target, msgpack.packb(parts))
    while not isinstance(event := endpoint.receive(5.0), Delivery):
        assert event is not None
    answer = decode(event.header, event.frames).message
    endpoint.close(0)
    assert isinstance(answer, Failed) and answer.error == "ProtocolError" and "version 99" in answer.text


def test_thousands_of_random_messages_do_nothing(server: dps.Server) -> None:
    draw = np.random.default_rng(0)
    with session(server) as s:
        before = s.pull()
        ports = [server.target, server.address, *(peer.ref.address for peer in s._connection.peers.values())]
        good, _ = encode(Envelope(dps.messages.sessions.Pull(1, 0, 0, 0, -1, []), "ps", 1, "x", 1))  # type: ignore[attr-defined]
        endpoint = runtime().endpoint(None)
        for index in range(4_000):
            header = draw.bytes(int(draw.integers(1, 60)))
            if index % 2:
                mixed = bytearray(good)
                mixed[int(draw.integers(len(mixed)))] = int(draw.integers(256))
                header = bytes(mixed)
            frames = [draw.bytes(int(draw.integers(0, 40))) for _ in range(int(draw.integers(0, 3)))]
            endpoint.send(ports[index % len(ports)], header, frames)
            endpoint.receive(0)
        endpoint.close()
        after = s.pull()
        assert s.push(ones()).accepted
        assert s.stats()["ps:0"]["refused_messages"] > 200
    np.testing.assert_array_equal(before["w"], after["w"])


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [Untold(), FileNotFoundError(b"data \xff".decode(errors="surrogateescape"))])
def test_an_error_whose_message_cannot_travel_ends_a_session_as_any_other(server: dps.Server, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, session(server) as s:
        raise error
    assert caught.value is error
    assert "closed" in repr(s)


# -- checkpoints ----------------------------------------------------------------------------------------------


def train(folder: Path, steps: int, ps: int = 2, partitioner: Any = None) -> Any:
    hooks = [dps.StopAtStep(last_step=steps), dps.CheckpointSaver(steps=2)]
    settings: dict[str, Any] = {"checkpoint_dir": str(folder), "partitioner": partitioner, "hooks": hooks}
    with (
        cluster(ps, 1, "inproc", owned=False) as (server,),
        session(server, optimizer=dps.optim.Adam(0.1), **settings) as s,
    ):
        while not s.should_stop():
            s.push({"w": s.pull()["w"], "b": [np.ones(2), None]})
        return s.pull()


def test_training_goes_on_from_a_checkpoint_with_the_same_bits_on_any_number_of_ps(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 9)
    train(tmp_path / "cut", 4, ps=1)
    again = train(tmp_path / "cut", 9, ps=3, partitioner=dps.partition.Fixed(2))
    np.testing.assert_array_equal(again["w"], whole["w"])
    np.testing.assert_array_equal(again["b"][0], whole["b"][0])


@pytest.mark.parametrize("damage", ["truncate", "alter", "manifest"])
def test_a_damaged_checkpoint_is_skipped_and_said_so(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, 6)
    newest = sorted(p for p in tmp_path.iterdir() if p.name.startswith("step-"))[-1]
    victim = newest / "manifest.json" if damage == "manifest" else sorted(newest.glob("shard-*"))[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data[:-3] if damage == "truncate" else data)
    train(tmp_path, 7)
    assert any(newest.name in text and "skipped" in text for text in caplog.messages)


def test_a_folder_of_damaged_checkpoints_does_not_begin_a_run_anew(tmp_path: Path) -> None:
    train(tmp_path, 6)
    saved = sorted(p for p in tmp_path.iterdir() if p.name.startswith("step-"))
    for folder in saved:
        os.truncate(sorted(folder.glob("shard-*"))[0], 10)
    with pytest.raises(CheckpointError, match=rf"no checkpoint in .* is whole.*{saved[-1].name}.*10 bytes.*put the fi"):
        train(tmp_path, 7)
    assert sorted(p for p in tmp_path.iterdir() if p.name.startswith("step-")) == saved


@pytest.mark.timeout(20)
def test_a_fifo_in_a_checkpoint_is_skipped_and_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, 6)
    newest = sorted(p for p in tmp_path.iterdir() if p.name.startswith("step-"))[-1]
    (newest / "manifest.json").unlink()
    os.mkfifo(newest / "manifest.json")
    train(tmp_path, 7)
    assert any(f"{newest.name}/manifest.json is a FIFO, wanted a regular file" in text for text in caplog.messages)


def test_a_checkpoint_dir_that_cannot_be_written(tmp_path: Path, server: dps.Server) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/run"):
        session(server, checkpoint_dir=str(tmp_path / "file" / "run"))
    with session(server) as s:
        assert s.push(ones()).accepted
        with pytest.raises(ValueError, match="checkpoint_dir"):
            s.save()


def test_a_full_disk_fails_the_save_and_nothing_else(server: dps.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    full: list[bool] = []

    def before_write(path: str, nbytes: int) -> None:
        if full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(runtime(), "storage", MemoryStorage(before_write))
    with session(server, checkpoint_dir="run") as s:
        s.push(ones())
        full.append(True)
        with pytest.raises(CheckpointError, match="No space left"):
            s.save()
        assert s.push(ones()).accepted
        full.clear()
        assert s.save().startswith("step-000000000002")


def test_a_save_that_takes_too_long_goes_on_and_the_next_one_waits_for_it(
    server: dps.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error said "the checkpoint has not answered", and each further save made one more checkpoint."""
    free, shards = threading.Event(), list[str]()

    def before_write(path: str, nbytes: int) -> None:
        if "manifest" not in path and ".safetensors" in path:
            shards.append(path.split("/")[1])
            free.wait(30)

    storage = MemoryStorage(before_write)
    monkeypatch.setattr(runtime(), "storage", storage)
    free.set()
    with session(server, checkpoint_dir="run") as s, dps.Session(server.target, timeout=30) as other:
        s.push(ones())
        free.clear()
        shards.clear()
        for _ in range(2):
            with pytest.raises(
                DeadlineExceeded, match=r"save: .* not finished within 0\.2 s; the chief goes on .* call save\(\) again"
            ) as raised:
                s.save(timeout=0.2)
        assert "larger timeout" in str(raised.value) and 'session.stats()["chief"]["saved"]' in str(raised.value)
        threading.Timer(0.3, free.set).start()
        name = s.save(timeout=30)
        assert name.startswith("step-000000000001") and set(shards) == {name}
        assert other.stats()["chief"]["saved"] == name
        free.clear()
        s.push(ones())
        with pytest.raises(DeadlineExceeded):
            s.save(timeout=0.2)
        s.push(ones())  # what the caller wants saved now is newer
        free.set()
        assert s.save().startswith("step-000000000003")


def test_a_save_that_has_failed_is_made_anew_by_the_next_call(
    server: dps.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, told = threading.Event(), threading.Event()

    def before_write(path: str, nbytes: int) -> None:
        if full.is_set() and ".safetensors" in path:
            told.wait(30)
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(runtime(), "storage", MemoryStorage(before_write))
    with session(server, checkpoint_dir="run") as s:
        s.push(ones())
        full.set()
        with pytest.raises(DeadlineExceeded):
            s.save(timeout=0.1)
        threading.Timer(0.3, told.set).start()
        with pytest.raises(CheckpointError, match="No space left"):
            s.save()
        full.clear()
        assert s.save().startswith("step-000000000001")


def test_restore_rolls_everybody_back(tmp_path: Path, server: dps.Server) -> None:
    lost: list[tuple[int, int]] = []

    class Rollbacks(dps.Hook):
        def rolled_back(self, session: Any, step: int, steps: int) -> None:
            lost.append((step, steps))

    with session(server, checkpoint_dir=str(tmp_path), hooks=[Rollbacks()]) as s:
        s.push(ones())
        name = s.save()
        for _ in range(3):
            s.push(ones())
        s.save()
        assert s.restore() == 4 and s.restore(name) == 1
        np.testing.assert_array_equal(s.pull()["w"], params()["w"] - np.float32(0.5))
        assert s.push(ones()).step == 2
        with pytest.raises(CheckpointError):
            s.restore("step-000000000099-epoch-000001")
    assert lost == [(4, 0), (1, 3)]


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(tmp_path: Path, server: dps.Server) -> None:
    """A deleted checkpoint and a wrong name were said to be "never finished"; a number was a ProtocolError."""
    with session(server, checkpoint_dir=str(tmp_path), keep_checkpoints=2) as s:
        first, *kept = [s.save() for _ in range(3) if s.push(ones())]
        for name in (first, "nope"):
            text = f"there is no checkpoint '{name}' in {tmp_path}; there are {kept[1]}, {kept[0]}: give one of these"
            with pytest.raises(CheckpointError, match=text):
                s.restore(name)
        for wrong in (3, None, Path(kept[0])):
            with pytest.raises(TypeError, match=r"restore: got the name .*, wanted a string from save"):
                s.restore(wrong)  # type: ignore[arg-type]
        assert s.restore(kept[0]) == 2


def test_a_session_whose_run_has_steps_says_from_where_it_continues(
    server: dps.Server, caplog: pytest.LogCaptureFixture
) -> None:
    """It continued without a word, and the values in its params were not used."""
    caplog.set_level(logging.INFO, "dps")
    with session(server) as s:
        for _ in range(3):
            s.push(ones())
        with dps.Session(server.target, timeout=30):
            pass  # a reader expects the run's values
    assert not [text for text in caplog.messages if "continues" in text]
    with session(server) as s:
        np.testing.assert_array_equal(s.pull()["w"], params()["w"] - np.float32(1.5))
    assert [text for text in caplog.messages if "continues" in text] == [
        "worker:0: continues from step 3 of this run, with the values on its ps; those in params are not used"
    ]


def test_an_uneven_plan_is_told_with_what_would_mend_it(caplog: pytest.LogCaptureFixture) -> None:
    tree = {"big": np.zeros(400_000, np.float32), "small": np.zeros(4, np.float32)}
    with cluster(2, 1, "inproc") as (server,):
        with dps.Session(server, tree, optimizer=dps.optim.SGD(1.0), timeout=60):
            pass
        advice = "with partitioner=dps.partition.MinSize(min_bytes=262144, max_shards=2) it would be 1.00 times"
        assert [advice in text for text in caplog.messages if "times" in text] == [True]


def test_the_plan_is_told_by_one_worker_for_all(caplog: pytest.LogCaptureFixture) -> None:
    tree = {"big": np.zeros(400_000, np.float32), "small": np.zeros(4, np.float32)}

    def train(server: dps.Server) -> None:
        with dps.Session(server, tree, optimizer=dps.optim.SGD(1.0), update="sync", timeout=60) as s:
            s.push({"small": np.ones(4, np.float32)})

    with caplog.at_level("DEBUG", "dps"), cluster(2, 3, "inproc") as servers:
        on_all(servers, train)
    plans = {
        text.partition(":")[2][0]: record.levelname
        for text, record in zip(caplog.messages, caplog.records, strict=True)
        if "the plan" in text
    }
    assert plans == {"0": "INFO", "1": "DEBUG", "2": "DEBUG"}
    assert sum("times the mean" in record.getMessage() for record in caplog.records) == 1


def test_a_session_that_could_not_open_in_time_leaves_nothing_behind(server: dps.Server) -> None:
    for timeout in (0.3, 3.0, 30.0):  # a chief on a busy machine may not have answered before the first one is over
        with pytest.raises(DeadlineExceeded) as told:
            dps.Session(server, timeout=timeout)
        if "waits for a session that brings variables" in str(told.value):
            break
    assert "waits for a session that brings variables" in str(told.value)
    with session(server) as s:
        assert s.stats()["chief"]["live"] == ["worker:0"]
        assert s.push(ones()).step == 1


def test_waiting_for_ever_says_every_ten_seconds_for_whom() -> None:
    def wait(server: Any) -> None:
        if server.task == 0:
            with dps.Session(server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), timeout=dps.FOREVER) as s:
                s.push({"w": np.ones(1)})
        else:
            server.runtime.sleep(45)
            with dps.Session(server, {"w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0), timeout=dps.FOREVER) as s:
                s.push({"w": np.ones(1)})

    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dps").addHandler(handler)
    try:
        run = dps.simulate(wait, workers=2, update="sync")
    finally:
        logging.getLogger("dps").removeHandler(handler)
    assert not run.errors and run.seconds > 45
    assert sum("step 1 waits for worker:1" in text for text in texts) == 4


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "sockets"])
def test_a_conditional_pull_has_the_values_of_now_also_of_shards_that_are_not_newer(shared: bool) -> None:
    one, params = np.ones(3, np.float32), {"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}
    settings: Any = {"optimizer": dps.optim.SGD(1.0), "shared_memory": shared}
    with cluster(2, 1) as (server,), dps.Session(server, params, **settings) as s:
        version = (s.pull(), s.version)[1]
        s.push({"a": one, "b": one})
        s.pull(if_newer_than=version)  # is kept
        for _ in range(2):
            s.push({"a": one})
        version = (s.pull(), s.version)[1]
        s.push({"b": one})
        found = s.pull(if_newer_than=version)
        assert (found["a"][0], found["b"][0]) == (-3.0, -2.0)
        s.push({"b": one})
        found = s.pull(["b", "a", "b"], if_newer_than=version)
        assert (found["a"][0], found["b"][0]) == (-3.0, -3.0)
        s.push({"a": one})
        found = s.pull(if_newer_than=version)
        assert (found["a"][0], found["b"][0]) == (-4.0, -3.0)
        assert s.pull([]) == {} and s.pull(if_newer_than=s.version) is None


@pytest.mark.parametrize("update", ["async", "sync"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "sockets"])
def test_an_interrupt_amid_a_push_to_several_ps_leaves_no_gap(
    update: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dps.actors.caller import Caller
    from dps.client import transfers

    one, params = np.ones(3, np.float32), {"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}
    settings: Any = {"optimizer": dps.optim.SGD(1.0), "shared_memory": shared, "update": update, "timeout": 60}
    of, name = (Caller, "post_plain") if shared and update == "async" else (transfers.PushTransfer, "begin")
    sent, calls = getattr(of, name), list[None]()

    def interrupted(self: Any, *arguments: Any, **more: Any) -> None:
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        sent(self, *arguments, **more)

    with cluster(2, 1) as (server,), dps.Session(server, params, **settings) as s:
        s.push({"a": one, "b": one})
        monkeypatch.setattr(of, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            s.push_async({"a": one, "b": one})
        s.pull()
        told = s.push({"a": one, "b": one})
        if update == "sync" and not told.accepted:  # the interrupted one has made their common step without this one
            assert told.step == 2 and s.pull()["a"][0] == -2.0
            told = s.push({"a": one, "b": one})
        assert told.accepted
        found = s.pull()
        assert found["a"][0] in (-2.0, -3.0) and found["b"][0] in (-2.0, -3.0)


@pytest.mark.parametrize("update", ["async", "sync", dps.Local(2)], ids=str)
@pytest.mark.parametrize("wrong", ["5", float("nan"), True, [1]], ids=str)
def test_a_timeout_that_is_no_number_of_seconds_is_told_however_fast_the_answer_is(update: Any, wrong: Any) -> None:
    with cluster(1, 1, "inproc") as (server,), session(server, update=update) as s:
        calls: list[Callable[[], Any]] = [
            lambda: s.pull(timeout=wrong),
            lambda: s.push(ones(), timeout=wrong),
            lambda: s.step(ones(), timeout=wrong),
            lambda: s.step_in_place(ones(), timeout=wrong),
            lambda: s.lookup("a", [0], timeout=wrong),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match=r"timeout: got .*, wanted seconds, dps.FOREVER, or None"):
                call()
        assert s.global_step == 0
