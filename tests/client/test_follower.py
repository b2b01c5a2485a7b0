"""Following published versions: whole ones alone, in the form that was asked for, through lost ps and other runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.client.publishing import Publications
from dps.errors import ConfigError
from dps.ps.serving.reading import ShardReads
from dps.transport.dtypes import dtype_of
from tests.in_process import cluster

SGD = dps.optim.SGD(1.0)
ROOT = Path(__file__).parents[2]
WAIT_S = 60.0


def params() -> dict[str, Any]:
    return {
        "hidden": {"w": np.zeros((5, 3), np.float32)}, "b": np.zeros((), np.float64),
        "count": dps.Variable(np.arange(4), trainable=False),
    }  # fmt: skip


def zeros(dtype: Any = np.float32) -> dict[str, Any]:
    return {"hidden": {"w": np.zeros((5, 3), dtype)}, "b": np.zeros((), np.float64), "count": np.zeros(4, np.int64)}


def push(session: dps.Session, by: float = 1.0) -> None:
    session.push({"hidden": {"w": np.full((5, 3), -by, np.float32)}, "b": np.float64(-by)})


def swapped(weights: dps.Follower, out: Any = None, number: int = 1) -> dps.Published:
    """The first version from this number on."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        published = weights.swap(out=out)
        if published is not None and published.number >= number:
            return published
        time.sleep(0.005)
    raise AssertionError(f"nothing to swap in: {weights!r}, {weights.problem}")


@pytest.fixture
def session() -> Any:
    with (
        cluster(ps=2, workers=1) as (worker,),
        dps.Session(worker, params(), optimizer=SGD, partitioner=dps.partition.Fixed(2)) as session,
    ):
        yield session


def test_each_version_is_put_in_place_whole_and_nothing_else(session: Any) -> None:
    out = zeros()
    with dps.Follower(session._server.target) as weights:
        assert weights.swap(out=out) is None and weights.published is None
        for number in range(1, 4):
            push(session)
            published = session.publish(f"step-{number}")
            assert swapped(weights, out, number) == published == weights.published
            assert 0 < weights.published.lag_s < WAIT_S
            assert (out["hidden"]["w"] == number).all() and out["b"] == number and (out["count"] == np.arange(4)).all()
            assert weights.swap(out=out) is None, "it is in place already"
        assert weights.fetched == 3 and weights.failures == 0
        parts = 9 * 2, 6 * 2, 2, 16, 16  # w and b as bfloat16, count as it is; all but b have two parts
        assert weights.nbytes == 3 * sum(-(-nbytes // 8) * 8 for nbytes in parts)
    assert weights.published.number == 3


def test_a_follower_that_slept_takes_the_newest_version(session: Any) -> None:
    with dps.Follower(session._server.target, names=["b"]) as weights:
        for _ in range(50):
            push(session)
            session.publish()
        assert swapped(weights, number=50).number == 50
        assert list(weights.values or ()) == ["b"] and (weights.values or {})["b"].dtype == dtype_of("bfloat16")


def test_a_version_that_a_newer_one_has_replaced_is_not_waited_for(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower is slower than a program that publishes all the time, and comes too late for five versions."""
    pauses: list[int] = []
    fetch, asked = Publications.fetch, list[int]()

    def publish() -> None:
        push(session)
        session.publish()

    def late(self: Any, number: int, *about: Any) -> Any:
        asked.append(number)
        if number <= 5:
            publish()
        return fetch(self, number, *about)

    monkeypatch.setattr(Publications, "fetch", late)
    monkeypatch.setattr(dps.Follower, "_pause", lambda self: pauses.append(1))
    with dps.Follower(session._server.target) as weights:
        publish()
        assert swapped(weights).number == 6 and weights.failures == 5
    assert asked == [1, 2, 3, 4, 5, 6] and not pauses


def test_a_version_that_no_ps_keeps_is_asked_for_after_a_pause(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    fetch = Publications.fetch

    def lacks(self: Any, number: int, *about: Any) -> Any:
        return fetch(self, number + 1 if len(pauses) < 2 else number, *about)

    monkeypatch.setattr(Publications, "fetch", lacks)
    monkeypatch.setattr(dps.Follower, "_pause", lambda self: pauses.append(1))
    push(session)
    session.publish()
    with dps.Follower(session._server.target) as weights:
        assert swapped(weights).number == 1
    assert len(pauses) == 2 and weights.failures == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", None])
def test_values_come_in_the_form_that_was_asked_for(session: Any, dtype: str | None) -> None:
    push(session, 1.001)
    session.publish()
    exact = session.pull(published=1)["hidden"]["w"]
    target, own = session._server.target, dtype_of({"bfloat16": "bfloat16", "float16": "<f2", None: "<f4"}[dtype])
    with dps.Follower(target, dtype=dtype) as weights:
        out = zeros(own)
        out["b"] = np.zeros((), own if dtype else np.float64)
        swapped(weights, out)
        np.testing.assert_array_equal(out["hidden"]["w"], exact.astype(own))
    with dps.Follower(target, dtype=dtype) as weights:
        out = zeros()
        swapped(weights, out)
        np.testing.assert_array_equal(out["hidden"]["w"], exact.astype(own).astype(np.float32))
        np.testing.assert_array_equal(out["count"], np.arange(4))


def test_what_does_not_fit_is_refused_before_anything_is_written(session: Any) -> None:
    push(session)
    session.publish()
    with dps.Follower(session._server.target) as weights:
        wrong = zeros()
        wrong["count"] = np.zeros(4, np.int32)
        with pytest.raises(ValueError, match=r"swap: out has int32 \(4,\) for count; wanted an array of <i8 \(4,\)"):
            swapped(weights, wrong)
        assert not wrong["hidden"]["w"].any() and weights.published is None
        wrong["count"] = np.zeros(4, np.int64)
        wrong["count"].flags.writeable = False
        with pytest.raises(ValueError, match="swap: out for count is read-only"):
            weights.swap(out=wrong)
        assert not wrong["hidden"]["w"].any() and weights.published is None
        del wrong["count"]
        with pytest.raises(ValueError, match="swap: out has nothing for count"):
            weights.swap(out=wrong)
        out = zeros()
        assert weights.swap(out=out) is not None and (out["hidden"]["w"] == 1).all()


def test_wrong_arguments_are_one_clear_error(session: Any) -> None:
    with pytest.raises(ConfigError, match="got dtype='int8', wanted 'bfloat16', 'float16' or None"):
        dps.Follower("127.0.0.1:1", dtype="int8")
    with pytest.raises(TypeError, match=r"names: got 'b', wanted a list of names, such as \['b'\]"):
        dps.Follower("127.0.0.1:1", names="b")
    for timeout in (float("nan"), 0, "soon"):
        with pytest.raises(ConfigError, match=f"timeout: got {timeout!r}, wanted seconds above 0"):
            dps.Follower("127.0.0.1:1", timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has keys of its own"):
        dps.Follower(session._server, keys="keys")
    with (
        dps.Follower(session._server.target, names=["hidden/v"]) as weights,
        pytest.raises(ConfigError, match=r"no variables \['hidden/v'\]; there are \['hidden/w'"),
    ):
        swapped(weights)


def test_few_changes_are_few_bytes_and_the_bits_are_those_of_a_whole_pull() -> None:
    n, rng = 100_000, np.random.default_rng(3)
    start = rng.standard_normal(n).astype(np.float32)
    values = {"a": start, "b": start.copy()}
    with (
        cluster(ps=2, workers=1) as (worker,),
        dps.Session(worker, values, optimizer=SGD, partitioner=dps.partition.Fixed(2)) as session,
        dps.Follower(worker.target) as weights,
    ):
        out = {name: np.zeros(n, np.float32) for name in ("a", "b")}
        session.publish()
        swapped(weights, out)
        whole = weights.nbytes
        assert whole == 2 * 2 * n

        def change() -> dps.Published:
            gradient = np.zeros(n, np.float32)
            gradient[rng.choice(n, n // 100, replace=False)] = rng.standard_normal(n // 100) * 10
            session.push({"a": gradient, "b": gradient})
            return session.publish()

        for _ in range(3):
            before = weights.nbytes
            published = change()
            swapped(weights, out, published.number)
            assert weights.nbytes - before < whole / 50
            with dps.Follower(worker.target) as fresh:
                swapped(fresh)
                for name, mine in out.items():
                    np.testing.assert_array_equal((fresh.values or {})[name].astype(np.float32), mine)
        weights._bases[0][2][:] += 1  # damaged: this is noticed, and all is fetched again
        published = change()
        swapped(weights, out, published.number)
        exact = session.pull(published=published)["a"]
        np.testing.assert_array_equal(out["a"], exact.astype(dtype_of("bfloat16")).astype(np.float32))
        assert weights.failures == 1 and "do not lead to it" in weights.problem


def test_damaged_bytes_of_a_whole_version_are_noticed_and_fetched_again(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    sent = ShardReads.send_bytes
    damaged: list[str] = []

    def damage(self: ShardReads, sender: Any, counter: int, step: int, data: Any, *more: Any, **others: Any) -> None:
        if not damaged:
            damaged.append(self._shard.node.name)
            data = data.copy()
            data[len(data) // 2] ^= 1
        sent(self, sender, counter, step, data, *more, **others)

    monkeypatch.setattr(ShardReads, "send_bytes", damage)
    push(session)
    session.publish()
    with dps.Follower(session._server.target, dtype=None) as weights:
        out = zeros()
        swapped(weights, out)
        np.testing.assert_array_equal(out["hidden"]["w"], np.ones((5, 3), np.float32))
        assert weights.failures == 1
        assert f"the bytes of a published version from {damaged[0]} do not lead to it" in weights.problem


@pytest.mark.slow
def test_tensors_of_torch_are_filled_in_either_dtype(session: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    push(session)
    session.publish()
    with dps.Follower(session._server.target, names=["hidden/w"]) as weights:
        out = {"hidden": {"w": torch.zeros((5, 3), dtype=torch.bfloat16)}}
        swapped(weights, out)
        assert bool((out["hidden"]["w"] == 1).all())
    with dps.Follower(session._server.target, names=["hidden/w"]) as weights:
        out = {"hidden": {"w": torch.zeros((5, 3))}}
        swapped(weights, out)
        assert bool((out["hidden"]["w"] == 1).all())


def test_another_run_at_the_address_is_followed_anew(caplog: pytest.LogCaptureFixture) -> None:
    address = ""
    runs: list[dps.Published] = []
    weights: dps.Follower | None = None
    for steps in (2, 1):
        chief = dps.Server(None, "chief", 0, ps=1, workers=1, owned=True, bind=address or "127.0.0.1:0")
        address = chief.address
        ps = dps.Server(None, "ps", 0, chief=address)
        worker = dps.Server(None, "worker", 0, chief=address)
        weights = weights or dps.Follower(address)
        with dps.Session(worker, params(), optimizer=SGD) as session:
            for _ in range(steps):
                push(session)
                session.publish()
            runs.append(swapped(weights, zeros(), steps))
        for server in (chief, ps, worker):
            server.stop()
            server.join(10)
    weights.close()
    assert [published.number for published in runs] == [2, 1] and len({published.run for published in runs}) == 2
    assert f"follows another run from now on: {runs[1].run} in place of {runs[0].run}" in caplog.text


def role(chief: str, task: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dps.role", "--job", "ps", "--task", str(task), "--chief", chief]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("update", [dps.SyncReplicas(), pytest.param(dps.Async(), marks=pytest.mark.nightly)], ids=str)
def test_a_ps_that_is_killed_in_the_middle_leaves_no_mixture_and_no_step_back(tmp_path: Path, update: Any) -> None:
    """The ps are processes of their own; one is killed while versions are published and swapped in."""
    chief = dps.Server(None, "chief", 0, bind="127.0.0.1:0", ps=2, workers=1, owned=True, update=update)
    stop, told, seen = threading.Event(), list[dps.Published](), list[tuple[dps.Published, float, float]]()
    rolled_back = list[int]()

    class RolledBack(dps.Hook):
        def rolled_back(self, session: Any, step: int, lost: int) -> None:
            rolled_back.append(step)

    tasks = [role(chief.address, task) for task in (0, 1)]
    worker = dps.Server(None, "worker", 0, chief=chief.address)

    def train() -> None:
        hooks = [dps.CheckpointSaver(steps=20), RolledBack()]
        values = {"a": np.zeros(200_000, np.float32), "b": np.zeros(200_000, np.float32)}
        with dps.Session(worker, values, optimizer=SGD, hooks=hooks, checkpoint_dir=tmp_path) as session:
            one = {name: np.full(200_000, -1, np.float32) for name in values}
            while not stop.is_set():
                session.push(one)
                told.append(session.publish())

    thread = threading.Thread(target=train)
    thread.start()
    try:
        with dps.Follower(chief.address, dtype=None) as weights:
            out = {name: np.zeros(200_000, np.float32) for name in ("a", "b")}

            def swap() -> None:
                until(lambda: weights.swap(out=out) is not None)
                assert weights.published is not None
                assert out["a"].min() == out["a"].max() and out["b"].min() == out["b"].max(), "one shard, two versions"
                seen.append((weights.published, float(out["a"][0]), float(out["b"][0])))

            for _ in range(10):
                swap()
            tasks[1].kill()
            tasks[1].wait()
            tasks[1] = role(chief.address, 1)
            killed_at = seen[-1][0].number
            until(lambda: weights.swap() is not None and weights.published.number > killed_at + 2)  # type: ignore[union-attr]
            for _ in range(10):
                swap()
    finally:
        stop.set()
        thread.join(WAIT_S)
        for server in (worker, chief):
            server.stop()
        for process in tasks:
            process.kill()
            process.wait()
    numbers = [published.number for published, _, _ in seen]
    assert numbers == sorted(set(numbers)) and len({published.run for published in told}) == 1
    assert [published.number for published in told] == sorted({published.number for published in told})
    assert all(a == b for _, a, b in seen), f"a mixture of shards: {seen}"
    assert len(rolled_back) == 1
