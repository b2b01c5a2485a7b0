"""Keyed tables by sessions against running clusters: lookups, pushes, checkpoints, full tables and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import CheckpointError, ConfigError, HookError, PlacementError
from dps.kernels.first_values import FirstValues
from tests.client.test_follower import swapped
from tests.in_process import cluster, on_all

SGD = dps.optim.SGD(0.5)
EDGES = np.array([0, -1, (1 << 63) - 1, -(1 << 63)], np.int64)
NORMAL = dps.init.Normal(0.1, seed=3)


def table(**settings: Any) -> dps.Variable:
    return dps.Variable(**{"keys": "int64", "dim": 4, "capacity": 5000, "init": NORMAL, **settings})


def params() -> dict[str, Any]:
    wide = table(dim=3, dtype="float64", init=dps.init.Uniform(0, 1), optimizer=dps.optim.Adagrad(0.1, rowwise=True))
    return {"user": table(), "w": np.zeros(3, np.float32), "item": wide}


def first_of(init: Any, name: str, keys: Any, dim: int, dtype: str) -> Any:
    out = np.empty((len(keys), dim), dtype)
    FirstValues(init, name, (1, dim), dtype).fill_rows(out, np.arange(len(keys)), keys)
    return out


def some_keys(n: int = 900) -> Any:
    keys = np.random.default_rng(0).integers(-(1 << 63), (1 << 63) - 1, n, dtype=np.int64)
    keys[: len(EDGES)] = EDGES
    return keys


def train(session: dps.Session, seed: int) -> None:
    """Pushes with repeated keys, of several shapes, and one without any. Where there is a table `rare`, some of its
    keys are admitted and expire, and in the end all ps are told the step."""
    draw, keys = np.random.default_rng(seed), some_keys()
    names = session._connection.agreed.plan.tables_by_name
    for k in range(4):
        ids = draw.choice(keys, (60, 2) if k % 2 else 700)
        grads: dict[str, Any] = {"user": dps.Rows(ids, draw.normal(size=(*ids.shape, 4)).astype(np.float32))}
        if k != 2:
            grads["item"] = dps.Rows(ids[:9], draw.normal(size=(*ids[:9].shape, 3)))
        if "rare" in names:
            some = draw.choice(keys, 500)
            grads["rare"] = dps.Rows(some, draw.normal(size=(500, 2)).astype(np.float32))
        session.push({**grads, "w": np.ones(3, np.float32)})
    session.push({"w": np.ones(3, np.float32)})
    session.push({"user": dps.Rows(np.empty(0, np.int64), np.empty((0, 4), np.float32))})
    if "rare" in names:
        session.push({"user": dps.Rows(keys, np.ones((len(keys), 4), np.float32))})


def bits(session: dps.Session) -> list[bytes]:
    names = [name for name in ("user", "item", "rare") if name in session._connection.agreed.plan.tables_by_name]
    found = [session.lookup(name, some_keys()) for name in names]
    return [array.tobytes() for array in (*found, session.pull()["w"])]


@pytest.mark.parametrize("ps", [1, 3])
def test_an_unknown_key_reads_its_first_value_and_a_lookup_creates_nothing(ps: int) -> None:
    keys = some_keys(50)
    with (
        cluster(ps=ps, transport="inproc") as (server,),
        dps.Session(server, params(), optimizer=SGD, timeout=240) as session,  # it may compile
    ):
        before = session.lookup({"user": keys, "item": keys[:, None]})
        assert np.array_equal(before["user"], first_of(NORMAL, "user", keys, 4, "float32"))
        wanted = first_of(dps.init.Uniform(0, 1), "item", keys, 3, "float64")
        assert np.array_equal(before["item"][:, 0], wanted) and before["item"].shape == (50, 1, 3)
        assert sum(stats["tables"]["user"]["rows"] for n, stats in session.stats().items() if n != "chief") == 0
        session.push({"user": dps.Rows(EDGES, np.ones((4, 4), np.float32))})
        out = np.empty((2, 2, 4), np.float32)
        found = session.lookup("user", EDGES.reshape(2, 2), out=out)
        assert found is out and np.array_equal(out.reshape(4, 4), before["user"][:4] - np.float32(0.5))
        assert np.array_equal(session.lookup_async("user", keys[4:]).result(), before["user"][4:])
        assert sum(stats["tables"]["user"]["rows"] for n, stats in session.stats().items() if n != "chief") == 4


def test_a_key_twice_in_a_push_is_summed_once_and_in_a_lookup_is_read_twice() -> None:
    with (
        cluster(ps=2, transport="inproc") as (server,),
        dps.Session(server, params(), optimizer=dps.optim.Adagrad(1.0), timeout=240) as session,
    ):
        first = session.lookup("user", [7])[0]
        session.push({"user": dps.Rows([7, -7, 7], np.array([[1] * 4, [5] * 4, [2] * 4], np.float32))})
        rows = session.lookup("user", [7, 7, -7])
        assert rows[0] == pytest.approx(first - 3 / np.sqrt(9.1), abs=1e-5) and np.array_equal(rows[0], rows[1])


@pytest.mark.slow
@pytest.mark.parametrize("update", ["async", "bounded:2", "sync"])
def test_any_number_of_ps_and_either_way_gives_the_same_bits(update: str, tmp_path: Path) -> None:
    seen: list[Any] = []

    def params_of_all_kinds() -> dict[str, Any]:
        return {**params(), "rare": table(dim=2, admit=2, expire_steps=4)}

    for ps, shared in [(1, True), (3, True), (3, False), (2, False)]:
        own = tmp_path / f"{ps} {shared}"
        with (
            cluster(ps=ps, trusted=True, update=update, checkpoint_root=tmp_path) as (server,),
            dps.Session(
                server,
                params_of_all_kinds(),
                optimizer=dps.optim.Adam(0.1),
                checkpoint_dir=own,
                shared_memory=shared,
                timeout=240,
            ) as session,
        ):
            train(session, 1)
            first, name = bits(session), session.save()
            train(session, 2)
            second = bits(session)
            changed = moved(session, some_keys(), first_of(NORMAL, "rare", some_keys(), 2, "float32"))
            assert 100 < np.count_nonzero(changed) < 800  # of 900 keys
            assert session.restore(name) == 7 and bits(session) == first
            train(session, 2)
            assert bits(session) == second
            session.save()
            seen.append((first, second))
        for other in (3, 1) if (ps, shared) == (2, False) else ():
            copied = shutil.copytree(own, tmp_path / f"for {other}")
            with (
                cluster(ps=other, trusted=True, update=update, checkpoint_root=tmp_path) as (server,),
                dps.Session(
                    server, params_of_all_kinds(), optimizer=dps.optim.Adam(0.1), checkpoint_dir=copied
                ) as session,
            ):
                assert bits(session) == second
                train(session, 3)
                seen.append(bits(session))
    assert seen[0] == seen[1] == seen[2] == seen[3] and seen[4] == seen[5]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_in_sync_a_key_is_divided_by_the_pushes_that_have_it(reduction: str) -> None:
    update = dps.SyncReplicas(reduction=reduction)

    def work(server: dps.Server) -> Any:
        with dps.Session(server, params(), optimizer=SGD, update=update, timeout=240) as session:
            keys, values = [1, 10 + server.task], np.full((2, 4), 1 + server.task, np.float32)
            before = session.lookup("user", [1, 10, 11])
            session.push({"user": dps.Rows(keys, values)})
            return session.lookup("user", [1, 10, 11]) - before

    with cluster(ps=2, workers=2, transport="inproc", update=update) as servers:
        for moved in on_all(servers, work):
            wanted = [[-1.5 if reduction == "sum" else -0.75] * 4, [-0.5] * 4, [-1.0] * 4]
            assert np.allclose(moved, wanted, atol=1e-6)


def test_pulls_and_views_have_none_in_place_of_a_keyed_table() -> None:
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, [params()["w"], table()], optimizer=SGD, timeout=240) as session,
    ):
        assert session.pull()[1] is None and session.gradients()[1] is None
        with session.view() as values:
            assert values[1] is None
        out = [np.empty(3, np.float32), None]
        assert session.pull(out=out) is out
        assert session.step([np.ones(3, np.float32), dps.Rows([5], np.ones((1, 4), np.float32))])[1] is None
        assert session.step([np.ones(3, np.float32), None])[0] == pytest.approx(-1.0)
        with dps.Session(server) as reader:
            assert reader.pull()["1"] is None and np.array_equal(reader.lookup("1", [5]), session.lookup("1", [5]))
        with pytest.raises(ValueError, match=r"pull: 1 is a keyed table, .* use session.lookup"):
            session.pull(["1"])


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_model_of_keyed_tables_alone_is_trained(update: str, tmp_path: Path) -> None:
    tables = {"user": table(), "item": table(dtype="float16")}
    with (
        cluster(ps=2, trusted=True, update=update, checkpoint_root=tmp_path) as (server,),
        dps.Session(server, tables, optimizer=SGD, checkpoint_dir=tmp_path / "run", timeout=240) as session,
    ):
        before = session.lookup("item", EDGES)
        grads = {"user": dps.Rows(EDGES, np.ones((4, 4), np.float32))}
        assert session.push(grads).accepted
        assert session.push({"item": dps.Rows(EDGES, np.ones((4, 4), np.float16))}).step == 2
        name, after = session.save(), session.lookup("item", EDGES)
        assert np.allclose(after, before - np.float16(0.5), atol=2e-3) and after.dtype == np.float16
        session.push({"item": dps.Rows(EDGES, np.ones((4, 4), np.float16))})
        session.restore(name)
        assert np.array_equal(session.lookup("item", EDGES), after)
        assert session.pull() == {"user": None, "item": None}


def test_a_table_on_one_ps_has_all_of_its_rows_there() -> None:
    with (
        cluster(ps=2, transport="inproc") as (server,),
        dps.Session(
            server, {"user": table(device=dps.Device("/job:ps/task:1")), "w": np.zeros(1)}, optimizer=SGD, timeout=240
        ) as session,
    ):
        session.push({"user": dps.Rows(np.arange(100), np.ones((100, 4), np.float32))})
        stats = session.stats()
        assert stats["ps:1"]["tables"]["user"]["rows"] == 100 and "tables" not in stats["ps:0"]
        assert session.lookup("user", [1, 2]).shape == (2, 4)


def test_lookups_and_pushes_without_keys_and_integers_of_any_kind_are_taken() -> None:
    with (
        cluster(ps=2, transport="inproc") as (server,),
        dps.Session(server, params(), optimizer=dps.optim.Adam(0.5), timeout=240) as session,
    ):
        assert session.lookup("user", np.empty((0, 3), np.int64)).shape == (0, 3, 4)
        assert session.push({"user": dps.Rows([], np.empty((0, 4), np.float32))}).step == 1
        wanted = session.lookup("user", [3, 200])
        for kind in (np.uint8, np.int32, np.uint64, ">i8"):
            assert np.array_equal(session.lookup("user", np.array([3, 200], kind)), wanted)
        strided = np.arange(10)[::3]
        rows = np.ones((10, 4), np.float32)[::3]
        session.push({"user": dps.Rows(strided, rows)})
        assert np.array_equal(session.lookup("user", strided), session.lookup("user", strided.copy()))


def test_sparse_gradients_of_torch_are_pushed_by_keys() -> None:
    torch = pytest.importorskip("torch")
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, params(), optimizer=SGD, timeout=240) as session,
    ):
        ids = torch.tensor([5, 7, 5])
        before = session.lookup("user", ids)
        grad = torch.sparse_coo_tensor(ids[None], torch.ones(3, 4), (100, 4), check_invariants=True)
        session.push({"user": grad})
        assert np.allclose(session.lookup("user", ids), before - np.array([[1.0], [0.5], [1.0]]))


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("given", [dps.compress.Int8(), {"user": None, "*": dps.compress.Int8()}])
def test_patterns_of_compression_match_keyed_tables_whose_rows_are_sent_as_they_are(given: Any, alone: bool) -> None:
    values = {"user": table(init=dps.init.Zeros())} | ({} if alone else {"w": np.zeros(3, np.float32)})
    settings: Any = {"optimizer": SGD, "compression": given, "pull_compression": dps.compress.Float16()}
    with cluster(transport="inproc") as (server,):
        with dps.Session(server, values, **settings) as session:
            rows = np.float32([[0.1, 0.2, 0.3, 100]])
            session.push({"user": dps.Rows([7], rows)})
            assert np.array_equal(session.lookup("user", [7]), -0.5 * rows)
        with pytest.raises(ConfigError, match=r"'x' matches no variable; there are .*user"):
            dps.Session(server, values, optimizer=SGD, compression={"x": None})


def test_a_worker_with_another_table_is_refused() -> None:
    with (
        cluster(workers=2, transport="inproc") as (first, second),
        dps.Session(first, {"user": table()}, optimizer=SGD, timeout=240),
    ):
        for other, words in [
            ({"user": table(dim=5)}, "its user has dim 5, the run's has 4"),
            ({"user": table(init=dps.init.Zeros())}, "its user has init"),
            ({"item": table()}, r"its keyed tables are \['item'\], the run's are \['user'\]"),
        ]:
            with pytest.raises(ConfigError, match=words):
                dps.Session(second, other, optimizer=SGD, timeout=60)


@pytest.mark.slow
def test_published_versions_and_followed_checkpoints_leave_keyed_tables_out(tmp_path: Path) -> None:
    with (
        cluster(ps=2, trusted=True, checkpoint_root=tmp_path) as (server,),
        dps.Session(
            server, {**params(), "rare": table(dim=2, admit=2, expire_steps=9)}, optimizer=SGD,
            checkpoint_dir=tmp_path / "run", timeout=240,
        ) as session,
    ):  # fmt: skip
        train(session, 1)
        published = session.publish("one")
        assert session.pull(published=published)["user"] is None
        told = pytest.raises(ConfigError, match="user is a keyed table, which published versions leave out")
        with dps.Follower(server, names=["w", "user"]) as weights, told:
            swapped(weights)
        session.save()
        step, values = next(iter(dps.follow(checkpoint_dir=tmp_path / "run")))
        assert step == 7 and values.keys() == {"w"}


def test_a_checkpoint_of_a_keyed_table_is_read_by_other_programs(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    with (
        cluster(trusted=True, checkpoint_root=tmp_path) as (server,),
        dps.Session(server, params(), optimizer=SGD, checkpoint_dir=tmp_path / "run", timeout=240) as session,
    ):
        session.push({"user": dps.Rows(EDGES, np.ones((4, 4), np.float32))})
        name, rows = session.save(), session.lookup("user", EDGES)
    found = load_file(tmp_path / "run" / name / "shard-00000-of-00001.safetensors")
    assert found["user"].shape == (4, 4) and found["item"].shape == (0, 3)
    place = [found["user@keys"].tolist().index(key) for key in EDGES.tolist()]
    assert np.array_equal(found["user"][place], rows)


# -- admission --------------------------------------------------------------------------------------------------


def moved(session: dps.Session, keys: Any, first: Any) -> list[float]:
    """By how much the rows of keys of `rare` differ from what they begin with."""
    found: list[float] = (session.lookup("rare", keys) - first)[:, 0].tolist()
    return found


@pytest.mark.parametrize("update", ["async", "bounded:2", "sync"])
def test_a_key_gets_its_row_with_the_push_that_admits_it(update: str) -> None:
    with (
        cluster(ps=2, transport="inproc", update=update) as (server,),
        dps.Session(server, {"rare": table(admit=3)}, optimizer=SGD, timeout=240) as session,
    ):
        keys, ones = np.array([1, 2, -5]), np.ones((5, 4), np.float32)
        first = session.lookup("rare", keys)
        session.push({"rare": dps.Rows([1, 1, 2, 1, 1], ones)})  # a key counts once in a push
        assert moved(session, keys, first) == [0, 0, 0]
        session.push({"rare": dps.Rows([1, 2], ones[:2])})
        assert moved(session, keys, first) == [0, 0, 0]
        session.push({"rare": dps.Rows([1, 1, -5], ones[:3])})
        assert moved(session, keys, first) == pytest.approx([-1, 0, 0])
        session.push({"rare": dps.Rows([1, 2], ones[:2])})
        assert moved(session, keys, first) == pytest.approx([-1.5, -0.5, 0])
        told = [stats["tables"]["rare"] for name, stats in session.stats().items() if name != "chief"]
        counts = {name: sum(of[name] for of in told) for name in ("rows", "admitted", "dropped", "refused")}
        assert counts == {"rows": 2, "admitted": 2, "dropped": 5, "refused": 0}


def test_in_sync_each_chosen_push_of_a_step_counts_and_the_whole_sum_applies() -> None:
    update = dps.SyncReplicas(reduction="sum")

    def work(server: dps.Server) -> Any:
        with dps.Session(server, {"rare": table(admit=3)}, optimizer=SGD, update=update, timeout=240) as session:
            keys = np.array([1, 10 + server.task])
            first = session.lookup("rare", [1, 10, 11])
            seen = []
            for _ in range(3):
                session.push({"rare": dps.Rows(keys, np.full((2, 4), 1 + server.task, np.float32))})
                seen.append(moved(session, [1, 10, 11], first))
            return seen

    with cluster(ps=2, workers=2, transport="inproc", update=update) as servers:
        for seen in on_all(servers, work):
            wanted = [[0, 0, 0], [-1.5, 0, 0], [-3, -0.5, -1]]
            assert np.allclose(seen, wanted, atol=1e-6)


def test_pushes_that_are_refused_count_nothing() -> None:
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, {"rare": table(admit=2)}, optimizer=SGD, timeout=240) as session,
    ):
        first, one = session.lookup("rare", [7]), np.ones((1, 4), np.float32)
        with pytest.raises(ValueError, match="rare"):
            session.push({"rare": dps.Rows([7], one * np.nan)})
        session.push({"rare": dps.Rows([7], one)})
        assert moved(session, [7], first) == [0]
        session.push({"rare": dps.Rows([7], one)})
        assert moved(session, [7], first) == pytest.approx([-0.5])


def test_keys_that_are_not_admitted_need_no_room() -> None:
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, {"rare": table(capacity=40, admit=2)}, optimizer=SGD, timeout=240) as session,
    ):
        ones = np.ones((100, 4), np.float32)
        session.push({"rare": dps.Rows(np.arange(100), ones)})
        with pytest.raises(ValueError, match="the keyed table rare is full: 41 new keys do not fit beside 0 rows"):
            session.push({"rare": dps.Rows(np.arange(41), ones[:41])})
        session.push({"rare": dps.Rows(np.arange(40), ones[:40])})
        told = session.stats()["ps:0"]["tables"]["rare"]
        assert told["rows"] == 40 and told["refused"] == 1 and told["dropped"] == 100


def test_a_run_may_go_on_from_a_checkpoint_with_another_number_of_pushes(tmp_path: Path) -> None:
    one = np.ones((1, 4), np.float32)
    for admit, wanted in ((3, 0), (3, 0), (2, 1), (1, 2), (3, 3)):
        with (
            cluster(trusted=True, checkpoint_root=tmp_path) as (server,),
            dps.Session(
                server, {"rare": table(admit=admit)}, optimizer=SGD, checkpoint_dir=tmp_path / "run", timeout=240
            ) as session,
        ):
            session.push({"rare": dps.Rows([7], one)})
            first = first_of(NORMAL, "rare", np.array([7]), 4, "float32")
            assert moved(session, [7], first) == pytest.approx([-0.5 * wanted])
            session.save()


# -- expiry -----------------------------------------------------------------------------------------------------

ONE = np.ones((1, 4), np.float32)


@pytest.mark.parametrize("update", ["async", "bounded:2", "sync"])
def test_a_row_expires_by_the_steps_since_its_last_push_and_lookups_do_not_renew_it(update: str) -> None:
    with (
        cluster(ps=2, transport="inproc", update=update) as (server,),
        dps.Session(
            server, {"rare": table(expire_steps=3), "w": np.zeros(1, np.float32), "v": np.zeros(1, np.float32)},
            optimizer=dps.optim.Adagrad(0.5, initial_accumulator=1.0), timeout=240,
        ) as session,
    ):  # fmt: skip
        keys = np.array([1, 2])
        first = session.lookup("rare", keys)
        once, twice = -0.5 / np.sqrt(2), -0.5 / np.sqrt(2) - 0.5 / np.sqrt(3)
        seen = []
        for pushed in [[1, 2], [1], [], [], [2], [1], [], []]:
            rows = dps.Rows(pushed, np.ones((len(pushed), 4), np.float32))
            session.push({"rare": rows, "w": np.ones(1, np.float32), "v": np.ones(1, np.float32)})
            seen.append(moved(session, keys, first))
        wanted = [
            [once, once], [twice, once], [twice, once], [twice, 0], [0, once], [once, once], [once, once], [once, 0],
        ]  # fmt: skip
        assert np.allclose(seen, wanted, atol=1e-6)  # a row that begins anew has initial slots


def test_a_key_that_has_expired_is_to_be_admitted_again() -> None:
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, {"rare": table(admit=2, expire_steps=2)}, optimizer=SGD, timeout=240) as session,
    ):
        first, seen = session.lookup("rare", [7]), []
        for key in [7, 7, 8, 9, 7, 7]:
            session.push({"rare": dps.Rows([key], ONE)})
            seen += moved(session, [7], first)
        assert seen == pytest.approx([0, -0.5, -0.5, 0, 0, -0.5])
        told = session.stats()["ps:0"]["tables"]["rare"]
        assert (told["admitted"], told["expired"], told["dropped"], told["rows"]) == (2, 1, 4, 1)


@pytest.mark.parametrize("update", ["async", "sync"])
def test_room_of_expired_rows_is_used_before_a_push_is_refused(update: str) -> None:
    with (
        cluster(transport="inproc", update=update) as (server,),
        dps.Session(server, {"rare": table(capacity=40, expire_steps=5)}, optimizer=SGD, timeout=240) as session,
    ):
        ones = np.ones((40, 4), np.float32)
        for turn in range(4):
            session.push({"rare": dps.Rows(np.arange(40) + 100 * turn, ones)})
            with pytest.raises(ValueError, match="the keyed table rare is full"):
                session.push({"rare": dps.Rows([99], ONE)})
            for _ in range(5):
                session.push({"rare": dps.Rows([100 * turn], ONE)} if _ == 0 else {"rare": dps.Rows([], ones[:0])})
            session.push({"rare": dps.Rows([], ones[:0])})
        assert session.stats()["ps:0"]["tables"]["rare"]["refused"] == 4


def test_expired_rows_are_in_no_checkpoint_and_stamps_are_in_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    def opened(server: dps.Server, **settings: Any) -> dps.Session:
        return dps.Session(
            server, {"rare": table(**settings)}, optimizer=SGD, checkpoint_dir=tmp_path / "run", timeout=240
        )

    with cluster(trusted=True, checkpoint_root=tmp_path) as (server,), opened(server, expire_steps=3) as session:
        first = session.lookup("rare", [1, 2, 3])
        for key in (1, 2, 3, 3):
            session.push({"rare": dps.Rows([key], ONE)})
        name = session.save()
    found = load_file(tmp_path / "run" / name / "shard-00000-of-00001.safetensors")
    stamps = dict(zip(found["rare@keys"].tolist(), found["rare@stamps"].tolist(), strict=True))
    assert stamps == {2: 2, 3: 4} and found["rare"].shape == (2, 4)
    with cluster(ps=2, trusted=True, checkpoint_root=tmp_path) as (server,), opened(server, expire_steps=3) as session:
        assert moved(session, [1, 2, 3], first) == pytest.approx([0, -0.5, -1])
        session.push({"rare": dps.Rows(np.arange(10, 20), np.ones((10, 4), np.float32))})
        assert moved(session, [1, 2, 3], first) == pytest.approx([0, 0, -1])
        session.save()
    with cluster(trusted=True, checkpoint_root=tmp_path) as (server,), opened(server) as session:
        assert moved(session, [1, 2, 3], first) == pytest.approx([0, 0, -1])
        session.push({"rare": dps.Rows([1], ONE)})
        session.save()
    with cluster(trusted=True, checkpoint_root=tmp_path) as (server,), opened(server, expire_steps=2) as session:
        session.push({"rare": dps.Rows([4], ONE)})  # rows without stamps count from the checkpoint on
        assert moved(session, [1, 2, 3], first) == pytest.approx([-0.5, 0, -1])
        session.push({"rare": dps.Rows([4], ONE)})
        assert moved(session, [1, 2, 3], first) == [0, 0, 0]


# -- full tables ------------------------------------------------------------------------------------------------

FULL = "the keyed table user is full: .* capacity=40"


def test_in_async_a_ps_without_room_refuses_its_part_and_says_so() -> None:
    tables = {"user": table(capacity=40), "w": np.zeros(3, np.float32)}
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, tables, optimizer=SGD, timeout=240) as session,
    ):
        session.push({"user": dps.Rows(np.arange(40), np.ones((40, 4), np.float32))})
        before = session.lookup("user", np.arange(45))
        grads = {"user": dps.Rows(np.arange(38, 42), np.ones((4, 4), np.float32)), "w": np.ones(3, np.float32)}
        with pytest.raises(ValueError, match=FULL):
            session.push(grads)
        assert np.array_equal(session.lookup("user", np.arange(45)), before) and not session.pull()["w"].any()
        assert session.push({"user": dps.Rows(np.arange(40), np.ones((40, 4), np.float32))}).accepted
        assert session.stats()["ps:0"]["refused"] == 1


def test_in_sync_a_push_without_room_on_one_ps_changes_nothing_on_any() -> None:
    tables = {"user": table(capacity=40), "w": np.zeros(3, np.float32), "v": np.zeros(3, np.float32)}

    def work(server: dps.Server) -> Any:
        with dps.Session(server, tables, optimizer=SGD, update="sync", timeout=240) as session:
            refused = False
            own = np.arange(100) + 1000 * server.task
            keys = own if server.task else own[:2]
            try:
                session.push({"user": dps.Rows(keys, np.ones((len(keys), 4), np.float32)), "w": np.ones(3, np.float32)})
            except ValueError as error:
                refused = "the keyed table user is full" in str(error)
            session.push({"v": np.ones(3, np.float32)})
            rows = [stats["tables"]["user"]["rows"] for n, stats in session.stats().items() if n != "chief"]
            return refused, session.pull()["w"].tolist(), sum(rows)

    with cluster(ps=2, workers=2, transport="inproc", update="sync") as servers:
        found = on_all(servers, work)
    assert [refused for refused, _, _ in found] == [False, True]
    assert found[0][1:] == found[1][1:] == ([-0.5] * 3, 2)


def test_in_sync_pushes_of_one_step_that_find_no_room_together_are_not_both_in_it() -> None:
    tables = {"user": table(capacity=40)}

    def work(server: dps.Server) -> Any:
        with dps.Session(server, tables, optimizer=SGD, update="sync", timeout=240) as session:
            keys = np.arange(30) + 1000 * server.task
            try:
                session.push({"user": dps.Rows(keys, np.ones((30, 4), np.float32))})
            except ValueError as error:
                assert "is full" in str(error)
            else:
                return True, session.push({"user": dps.Rows(keys, np.ones((30, 4), np.float32))}).accepted
            return False, session.push({"user": dps.Rows(keys[:0], np.ones((0, 4), np.float32))}).accepted

    with cluster(workers=2, transport="inproc", update="sync") as servers:
        assert sorted(on_all(servers, work)) == [(False, True), (True, True)]


def test_in_sync_the_same_new_keys_of_two_workers_need_room_once() -> None:
    def work(server: dps.Server) -> Any:
        with dps.Session(server, {"user": table(capacity=40)}, optimizer=SGD, update="sync", timeout=240) as session:
            return session.push({"user": dps.Rows(np.arange(40), np.ones((40, 4), np.float32))}).accepted

    with cluster(workers=2, transport="inproc", update="sync") as servers:
        assert on_all(servers, work) == [True, True]


def test_a_smaller_capacity_than_a_checkpoint_has_rows_is_refused(tmp_path: Path) -> None:
    def opened(capacity: int) -> Any:
        servers = cluster(trusted=True, checkpoint_root=tmp_path)
        return servers, {"user": table(capacity=capacity)}

    servers, tables = opened(100)
    with servers as (server,), dps.Session(
        server, tables, optimizer=SGD, checkpoint_dir=tmp_path / "run", timeout=240
    ) as session:  # fmt: skip
        session.push({"user": dps.Rows(np.arange(90), np.ones((90, 4), np.float32))})
        session.save()
    servers, tables = opened(60)
    with servers as (server,), pytest.raises(dps.DpsError, match="the keyed table user is full"):
        dps.Session(server, tables, optimizer=SGD, checkpoint_dir=tmp_path / "run", timeout=30)
    servers, tables = opened(200)
    with servers as (server,), dps.Session(
        server, tables, optimizer=SGD, checkpoint_dir=tmp_path / "run", timeout=240
    ) as session:  # fmt: skip
        assert session.stats()["ps:0"]["tables"]["user"]["rows"] == 90


def test_another_table_than_the_saved_one_is_refused(tmp_path: Path) -> None:
    def session(variables: Any) -> Any:
        return dps.Session(server, variables, optimizer=SGD, checkpoint_dir=tmp_path / "run", timeout=240)

    with cluster(trusted=True, checkpoint_root=tmp_path) as (server,), session({"user": table()}) as first:
        first.push({"user": dps.Rows(np.arange(9), np.ones((9, 4), np.float32))})
        first.save()
    fixed = dps.Variable(shape=(9, 4), init=NORMAL)
    for variables, words in [
        ({"user": table(dim=5)}, "dim=5"), ({"user": table(dtype="float64")}, "float64"),
        ({"user": fixed}, "is a keyed table"), ({"item": table()}, "no variable 'item'"),
    ]:  # fmt: skip
        with cluster(trusted=True, checkpoint_root=tmp_path) as (server,), pytest.raises(CheckpointError, match=words):
            session(variables)


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"expire_steps": 0}, "expire_steps is 0, wanted a whole number from 1 to 281474976710656, as expire_steps=1"),
        ({"expire_steps": -5}, "expire_steps is -5, wanted"),
        ({"expire_steps": 1.5}, "expire_steps is 1.5, wanted"),
        ({"expire_steps": False}, "expire_steps is False, wanted"),
        ({"keys": "float32"}, "keys is 'float32', wanted keys='int64'"),
        ({"keys": None}, "keys is None, wanted keys='int64'"),
        ({"capacity": 0}, "capacity is 0, wanted a whole number from 1"),
        ({"capacity": -3}, "capacity is -3, wanted"),
        ({"admit": 0}, "admit is 0, wanted a whole number from 1 to 255, as admit=2"),
        ({"admit": 256}, "admit is 256, wanted"),
        ({"admit": 2.0}, "admit is 2.0, wanted"),
        ({"admit": None}, "admit is None, wanted"),
        ({"admit": True}, "admit is True, wanted"),
        ({"dim": None}, "dim is None, wanted"),
        ({"init": None}, "keys without init"),
        ({"init": dps.init.GlorotUniform()}, "needs the number of rows"),
        ({"init": dps.init.FromFile("x")}, "needs the number of rows"),
        ({"dtype": "int32"}, "wanted one of floats"),
        ({"shape": (3, 4)}, "got keys and shape"),
        ({"value": np.zeros(3)}, "got keys and a value"),
        ({"trainable": False}, "a keyed table is trained"),
        ({"synchronization": "on_read", "aggregation": "sum"}, "got keys and aggregation"),
    ],
)
def test_settings_that_a_keyed_table_does_not_have_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        table(**settings)


def test_a_run_refuses_what_a_keyed_table_cannot_have() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"update": "local:3"}, "user is a keyed table, of which workers have no copy"),
        ({"update": dps.Async(compensation=0.1)}, "of which no earlier values are kept"),
        ({"moving_average": dps.optim.MovingAverage(0.9)}, "no moving average is kept"),
        ({"optimizer": None}, "no optimizer for user"),
    ]
    for settings, words in refused:
        with cluster(transport="inproc") as (server,), pytest.raises(ConfigError, match=words):
            dps.Session(server, {"user": table()}, **{"optimizer": SGD, "timeout": 60, **settings})
    with cluster(transport="inproc") as (server,), pytest.raises(PlacementError, match=r"the ps tasks are \[0\]"):
        dps.Session(server, {"user": table(device=dps.Device("/job:ps/task:7"))}, optimizer=SGD)
    strategy = dps.strategy.Mirrored(["/cpu:0"])
    with strategy.scope(), pytest.raises(ConfigError, match="user is a keyed table, whose rows"):
        strategy.variables({"user": table()}, optimizer=SGD)


def test_init_fn_leaves_a_keyed_table_out_or_is_told_so() -> None:
    def opened(function: Any) -> Any:
        return dps.Session(server, params(), optimizer=SGD, init_fn=function, timeout=240)

    with cluster(transport="inproc") as (server,), opened(lambda given: {"w": np.ones(3, np.float32)}) as session:
        assert session.pull()["w"].tolist() == [1, 1, 1]
    with cluster(transport="inproc") as (server,), opened(lambda given: given) as session:
        assert session.pull()["w"].tolist() == [0, 0, 0]
    with (
        cluster(transport="inproc") as (server,),
        pytest.raises(HookError, match="an array for user, which is a keyed table; leave it out"),
    ):
        opened(lambda given: {"user": np.ones((3, 4), np.float32)})


def test_a_strategy_with_ps_trains_a_keyed_table() -> None:
    with (
        cluster(transport="inproc") as (server,),
        dps.strategy.ParameterServer(server, timeout=240) as strategy,
        strategy.scope(),
    ):
        variables = strategy.variables(params(), optimizer=SGD)
        session = variables.session
        before = session.lookup("user", EDGES)
        rows = dps.Rows(EDGES, np.ones((4, 4), np.float32))
        push = strategy.run(lambda: variables.apply_gradients({"user": rows, "w": np.ones(3, np.float32)}))
        assert push.accepted and variables.read()["user"] is None
        assert np.array_equal(session.lookup("user", EDGES), before - np.float32(0.5))


def test_calls_that_a_keyed_table_does_not_take_say_what_to_do() -> None:
    rows = np.ones((2, 4), np.float32)
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, params(), optimizer=SGD, timeout=240) as session,
    ):
        calls: list[tuple[Any, str]] = [
            (lambda: session.lookup("user", [1.5]), "keys of user are integers"),
            (lambda: session.lookup("user", np.array([1 << 63], np.uint64)), "the key 9223372036854775808 is no int64"),
            (lambda: session.lookup("user", [1], out=np.empty((1, 3), np.float32)), "lookup: out is float32"),
            (lambda: session.lookup("users", [1]), "no variable 'users'"),
            (lambda: session.push({"user": np.ones((5, 4), np.float32)}), r"its gradient is dps.Rows\(keys"),
            (lambda: session.push({"user": dps.Rows([1], rows)}), r"wanted float32 \(1, 4\)"),
            (lambda: session.push({"user": dps.Rows([1, 2], rows.astype(float))}), "got values float64"),
            (lambda: session.push({"user": dps.Rows([1, 2], rows * np.nan)}), "user"),
            (lambda: session.assign({"user": rows}), "which is a keyed table"),
        ]
        for call, words in calls:
            with pytest.raises(ValueError, match=words):
                call()
        assert session.stats()["ps:0"]["tables"]["user"]["rows"] == 0
