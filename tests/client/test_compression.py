"""Sessions that compress, against running clusters: values, bits, bytes, modes, refusals and bad input."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.checkpoint import MemoryStorage
from dps.errors import ConfigError
from dps.training.compression import Bfloat16, Compressor, Float16, Int8, RandomK, TopK
from dps.transport.sim import Compute, Kill
from tests.client.test_reproducible import first_values, flat, gradient
from tests.in_process import cluster, on_all
from tests.test_bad_input import one_line, run

ALL: list[Compressor] = [Float16(), Bfloat16(), Int8(), Int8(feedback=False), TopK(0.1), RandomK(0.1)]


def session(server: Any, params: Any = None, **settings: Any) -> dps.Session:
    values = {"w": np.zeros((4, 2), np.float32)} if params is None else params
    return dps.Session(server, values, **{"optimizer": dps.optim.SGD(1.0), "timeout": 60, **settings})


def train(server: Any, compressor: Any, partitioner: Any = None, steps: int = 8) -> bytes:
    with dps.Session(
        server, first_values(), optimizer=dps.optim.Adam(0.01), update=dps.SyncReplicas(), partitioner=partitioner,
        compression=compressor, pull_compression={"out/*": None, "*": Bfloat16()}, timeout=30,
    ) as s:  # fmt: skip
        for step in range(steps):
            assert s.push(gradient(s.pull(), server.task, step)).accepted
        return flat(s.pull())


@pytest.mark.slow
@pytest.mark.parametrize("compressor", ALL, ids=repr)
def test_sync_bits_do_not_depend_on_ps_parts_and_where_these_are(compressor: Compressor) -> None:
    """One ps, two, and two with parts; within a process and by tcp; and the simulator with small messages."""
    found = []
    for ps, partitioner, transport in ((1, None, "inproc"), (2, None, "tcp"), (2, dps.partition.Fixed(3), "inproc")):
        with cluster(ps, 2, transport) as servers:
            found += on_all(servers, lambda server, cut=partitioner: train(server, compressor, cut))
    simulated = dps.simulate(train, compressor, ps=2, workers=2, seed=3, compute=Compute(0.1, 0.9), piece_nbytes=64)
    assert not simulated.errors
    assert len(set(found + simulated.results)) == 1


@pytest.mark.thinned
@pytest.mark.parametrize("update", [dps.Async(), dps.SyncReplicas(), dps.Bounded(1)], ids=lambda u: type(u).__name__)
@pytest.mark.parametrize("compressor", ALL, ids=repr)
def test_every_mode_takes_every_compressor(update: Any, compressor: Compressor) -> None:
    """All elements are 0 but one, which is -2: what each compressor sends as it is, in the end."""
    grads = np.zeros((4, 2), np.float32)
    grads[2, 1] = -2
    both = threading.Barrier(2)

    def work(server: Any) -> Any:
        with session(server, update=update, compression=compressor, partitioner=dps.partition.Fixed(2)) as s:
            for _ in range(8):
                s.push({"w": grads})
                s.pull()
            both.wait(60)
            return s.pull()["w"]

    with cluster(2, 2, "inproc") as servers:
        found, same = on_all(servers, work)
    np.testing.assert_array_equal(found, same)
    pushes = 8 if isinstance(update, dps.SyncReplicas) else 16
    if isinstance(compressor, RandomK):  # some is left in the sessions
        assert 0 <= found[2, 1] <= 2 * pushes and np.count_nonzero(found) <= 1
    else:
        np.testing.assert_allclose(found, grads * -pushes, rtol=1e-6)


def test_pulled_values_are_cast_and_come_as_float32_whichever_way_they_are_asked_for() -> None:
    values = {"w": np.array([1 + 2**-9, 3, 1e-9], np.float32), "b": np.array([1 + 2**-9]), "n": np.arange(3)}
    with cluster(2, 1, "inproc") as (server,):
        rules = {"w": Bfloat16(), "*": Float16()}
        with session(server, values, pull_compression=rules, partitioner=dps.partition.Fixed(2)) as s:
            w = np.array([1, 3, 2.0**-30 * 1.0703125], np.float32)  # 1e-9 is 1.0737 * 2**-30: 137 / 128 is nearest
            pulled = s.pull()
            assert pulled["w"].dtype == np.float32 and pulled["w"].tolist() == w.tolist()
            assert pulled["b"].dtype == np.float64 and pulled["b"].tolist() == [1 + 2**-9]
            assert pulled["n"].tolist() == [0, 1, 2]
            assert s.pull(names=["w"])["w"].tolist() == w.tolist()
            with s.view() as seen:
                assert seen["w"].tolist() == w.tolist() and not seen["w"].flags.writeable
            out = {"w": np.empty(3, np.float32), "b": np.empty(1), "n": np.empty(3, np.int64)}
            assert s.pull(out=out)["w"].tolist() == w.tolist()
            assert s.pull(if_newer_than=s.version) is None
            s.push({"b": np.ones(1)})
            assert s.pull(if_newer_than=s.version)["w"].tolist() == w.tolist()
            assert s.lookup("w", [0]).tolist() == [1 + 2**-9], "rows that are looked up are not cast"


def test_a_reader_may_pull_packed_and_without_compression_nothing_is_counted() -> None:
    with cluster(1, 1, "inproc") as (server,), session(server) as s:
        s.push({"w": np.full((4, 2), 1 + 2**-9, np.float32)})
        with dps.Session(server.target, pull_compression=Bfloat16(), timeout=60) as reader:
            assert reader.pull()["w"].tolist() == [[-1, -1]] * 4
            traffic = reader.traffic
        assert s.traffic is None
    assert traffic is not None and (traffic.pulled, traffic.pulled_plain) == (16, 32)


@pytest.mark.slow
@pytest.mark.parametrize("casts", [None, {"table": Float16()}], ids=repr)
@pytest.mark.parametrize("optimizer", [dps.optim.SGD(0.5), dps.optim.Adam(0.1)], ids=lambda o: o.name)
def test_pulls_of_what_changed_are_the_values_that_a_plain_pull_gives(optimizer: Any, casts: Any) -> None:
    params = {"w": np.ones((40, 50), np.float32), "table": np.ones((30, 8), np.float32), "n": np.arange(5)}
    draw = np.random.default_rng(0)
    with cluster(2, 1, "tcp") as (server,):
        settings = {"compression": {"w": TopK(0.01)}, "partitioner": dps.partition.Fixed(3), "optimizer": optimizer}
        with session(server, params, pull_deltas=True, pull_compression=casts, shared_memory=False, **settings) as s:
            with dps.Session(server.target, pull_compression=casts, timeout=60) as reader:
                for step in range(30):
                    w = draw.normal(size=(40, 50)).astype(np.float32) if step % 5 else None
                    rows = dps.Rows(draw.integers(0, 30, 2), np.ones((2, 8), np.float32)) if step % 3 else None
                    for _ in range(12 if step == 20 else 1):  # more versions than the ps keep
                        s.push({"w": w, "table": rows})
                    found, wanted = s.pull(), reader.pull()
                    for name in params:
                        np.testing.assert_array_equal(found[name], wanted[name])
                    found["w"][:] = 7  # the caller's own; the next pull does not build on it
                assert s.pull(names=["n"])["n"].tolist() == [0, 1, 2, 3, 4]
            traffic = s.traffic
    assert traffic is not None
    if isinstance(optimizer, dps.optim.SGD):
        assert traffic.pulled < 0.4 * traffic.pulled_plain


def test_pulls_of_what_changed_go_on_after_a_rollback() -> None:
    def work(server: Any) -> Any:
        with session(server, {"w": np.zeros(500, np.float32)}, pull_deltas=True, checkpoint_dir="run", timeout=100,
                     shared_memory=False) as s:  # fmt: skip
            seen = []
            for step in range(8):
                one = np.zeros(500, np.float32)
                one[step] = -1
                s.push({"w": one})
                seen.append((s.global_step, float(s.pull()["w"].sum())))
                server.runtime.sleep(1.0)
            assert s.traffic is not None and s.traffic.pulled < s.traffic.pulled_plain
            return seen

    run = dps.simulate(
        work, ps=1, faults=[Kill("ps:0", at=4.5, restart_after=0.1)], storage=MemoryStorage(), compute=Compute(0.1)
    )
    (seen,) = run.results
    assert [step for step, _ in seen][-1] < 8 and all(total == step for step, total in seen)


def test_bytes_are_fewer_and_the_session_tells() -> None:
    with cluster(1, 1, "inproc") as (server,):
        params = {"w": np.zeros(10_000, np.float32), "b": np.zeros(10, np.float32)}
        with session(server, params, compression={"w": TopK(0.01)}) as s:
            s.push({"w": np.ones(10_000, np.float32), "b": np.ones(10, np.float32)})
            traffic = s.traffic
    assert traffic is not None and (traffic.pushed, traffic.pushed_plain) == (100 * 8 + 40, 40_040)


def test_rows_travel_as_they_are() -> None:
    with cluster(1, 1, "inproc") as (server,), session(server, compression=TopK(0.01)) as s:
        s.push({"w": dps.Rows([1, 3], np.ones((2, 2), np.float32))})
        assert s.pull()["w"].tolist() == [[0, 0], [-1, -1], [0, 0], [-1, -1]]


@pytest.mark.parametrize("update", [dps.Async(), dps.SyncReplicas()], ids=lambda u: type(u).__name__)
def test_a_refused_push_leaves_the_residual_as_it_was(update: Any) -> None:
    """The first push leaves 1 in w; the second is refused for b's sake, and neither its 9 nor its 3 are seen again."""
    with cluster(1, 1, "inproc") as (server,):
        params = {"w": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}
        with session(server, params, update=update, compression=TopK(0.5)) as s:
            s.push({"w": np.array([4, 1], np.float32)})
            with pytest.raises(ValueError, match="b has NaN or infinite values"):
                s.push({"w": np.array([9, 3], np.float32), "b": np.array([np.nan], np.float32)})
            s.push({"w": np.zeros(2, np.float32)})
            assert s.pull()["w"].tolist() == [-4, -1]


def test_a_dropped_push_leaves_the_residual_as_it_was() -> None:
    with cluster(1, 2, "inproc", update=dps.Async(max_staleness=0)) as (one, two):
        params = {"w": np.zeros(2, np.float32)}
        with session(one, params, compression=TopK(0.5)) as first, session(two, params) as second:
            first.pull()
            assert first.push({"w": np.array([4, 1], np.float32)}).accepted
            second.pull()
            second.push({"w": np.zeros(2, np.float32)})
            assert not first.push({"w": np.array([9, 3], np.float32)}).accepted
            first.pull()
            assert first.push({"w": np.zeros(2, np.float32)}).accepted
            assert first.pull()["w"].tolist() == [-4, -1]


def test_pushes_on_their_way_keep_their_own_bytes() -> None:
    with cluster(1, 1, "inproc") as (server,), session(server, compression=Int8()) as s:
        replies = [s.push_async({"w": np.full((4, 2), float(n), np.float32)}) for n in range(20)]
        assert all(reply.result().accepted for reply in replies)
        np.testing.assert_allclose(s.pull()["w"], -190, rtol=1e-5)


def test_after_a_rollback_the_residual_is_gone() -> None:
    """The ps is lost after the first push, and with it all but the first checkpoint: 1 and 2 were left, and are not
    sent, neither with the push that is given up nor with those after it."""
    disk = MemoryStorage()

    def work(server: Any) -> Any:
        params = {"w": np.zeros(3, np.float32)}
        with session(server, params, compression=TopK(0.3), checkpoint_dir="run", timeout=100) as s:
            s.push({"w": np.array([4, 1, 2], np.float32)})
            server.runtime.sleep(5.0)
            accepted = [s.push({"w": np.zeros(3, np.float32)}).accepted for _ in range(4)]
            return s.pull()["w"].tolist(), accepted, s.version.epoch

    run = dps.simulate(work, ps=1, faults=[Kill("ps:0", at=4.0, restart_after=0.1)], storage=disk, compute=Compute(0.1))
    assert run.results == [([0, 0, 0], [False, True, True, True], 2)]


# -- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("compression='int8'", "compression: got 'int8', wanted None or one of Float16, Bfloat16, Int8, TopK, RandomK"),
        ("compression=dps.compress.Int8", "compression: got the class Int8, wanted"),
        ("compression={'w': 8}", "compression['w']: got 8, wanted"),
        ("compression={'nope/*': None}", "compression: 'nope/*' matches no variable; there are w"),
        ("compression=dps.compress.TopK(0)", "TopK: fraction is 0.0, it must be above 0 and at most 1"),
        (
            "pull_compression=dps.compress.TopK(0.1)",
            "pull_compression: got TopK(fraction=0.1), wanted None or Float16()",
        ),
    ],
)
def test_settings_that_make_no_sense_are_one_line(
    settings: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(settings, tmp_path) == 2
    assert words in one_line(capsys)


def test_a_readers_pattern_that_matches_nothing_is_said_and_its_session_is_closed() -> None:
    words = "pull_compression: 'x' matches no variable; there are w"
    with cluster(1, 1, "inproc") as (server,), session(server), pytest.raises(ConfigError, match=words):
        dps.Session(server.target, pull_compression={"x": Float16()}, timeout=60)
