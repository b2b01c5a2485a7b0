"""Rows of tables, read and pushed: through memory and sockets, once and again, in parts, and by peers of all kinds."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import ProtocolError, Unavailable
from dps.messages.sessions import DENSE, PARTS, PS, ROWS, Lookup, Push, RowsAnswer, SharedRows
from dps.transport.current import runtime
from dps.transport.shared_memory import SharedMemory
from tests.in_process import cluster

ROWS_OF_TABLE, WIDTH, N = 3000, 40, 700
"""Large enough that lookups and pushes of N rows go through shared memory, and that lists are sent once."""


def first_values() -> dict[str, Any]:
    values = np.random.default_rng(1).normal(size=(ROWS_OF_TABLE, WIDTH)).astype(np.float32)
    return {"table": dps.Variable(values, sparse=True), "bias": np.zeros(3, np.float32)}


def session(server: Any, **settings: Any) -> dps.Session:
    return dps.Session(server, **{"params": first_values(), "optimizer": dps.optim.SGD(1.0), "timeout": 60, **settings})


def chosen(seed: int, n: int = N, *, repeat: bool = False) -> Any:
    return np.random.default_rng(seed).choice(ROWS_OF_TABLE, n, replace=repeat)


def normal(seed: int, n: int = N) -> Any:
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(np.float32)


def after(pushes: list[tuple[Any, Any]]) -> Any:
    """The table after pushes of (rows, values) with SGD at rate 1, summed in float32 in the order of occurrence."""
    table = first_values()["table"].value.copy()
    for rows, values in pushes:
        sums = np.zeros_like(table)
        np.add.at(sums, rows, values)
        table -= sums
    return table


@pytest.fixture(scope="module")
def server() -> Iterator[dps.Server]:
    with cluster(1, 1) as (one,):
        yield one


FORMS: dict[str, Callable[[int], Any]] = {
    "in any order": lambda i: chosen(i),
    "rising": lambda i: np.sort(chosen(i)),
    "with rows that repeat": lambda i: chosen(i, repeat=True),
    "few": lambda i: chosen(i, 5, repeat=True),
    "of another type": lambda i: chosen(i).astype(np.uint16),
    "in a list": lambda i: [5, 1, 5],
    "none": lambda i: np.empty(0, np.int64),
}


@pytest.mark.thinned
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("ps", "parts", "shared"), [(1, 1, True), (1, 1, False), (1, 3, True), (2, 3, True)])
def test_rows_are_read_and_written_in_the_callers_order(ps: int, parts: int, shared: bool, form: str) -> None:
    pushes: list[tuple[Any, Any]] = []
    with cluster(ps, 1) as (server,), session(
        server, shared_memory=shared, partitioner=dps.partition.Fixed(parts)
    ) as s:  # fmt: skip
        for i in (1, 2, 1, 1):
            rows = FORMS[form](i)
            np.testing.assert_array_equal(s.lookup("table", rows), after(pushes)[np.asarray(rows, np.int64)])
            values = normal(i, len(rows))
            assert s.push({"table": dps.Rows(rows, values)}).accepted
            pushes.append((np.asarray(rows, np.int64), values))
        np.testing.assert_array_equal(s.pull()["table"], after(pushes))


def test_rows_of_one_element_and_of_many_dimensions() -> None:
    line, cube = np.arange(2000.0), np.arange(2000 * 6, dtype=np.float32).reshape(2000, 2, 3)
    rows = np.random.default_rng(0).permutation(2000)[:1500]
    with cluster(1, 1) as (server,), session(server, params={"line": line, "cube": cube}) as s:
        np.testing.assert_array_equal(s.lookup("line", rows), line[rows])
        np.testing.assert_array_equal(s.lookup("cube", rows), cube[rows])
        s.push({"line": dps.Rows(rows, np.ones(1500)), "cube": dps.Rows(rows, np.ones((1500, 2, 3), np.float32))})
        np.testing.assert_array_equal(s.lookup("line", rows), line[rows] - 1)
        np.testing.assert_array_equal(s.lookup("cube", rows), cube[rows] - 1)


def test_a_push_of_rows_and_dense_gradients_is_one_push() -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        rows = chosen(1)
        assert s.push({"table": dps.Rows(rows, normal(1)), "bias": np.ones(3, np.float32)}).step == 1
        values = s.pull()
        np.testing.assert_array_equal(values["table"], after([(rows, normal(1))]))
        assert values["bias"].tolist() == [-1.0] * 3


@pytest.mark.parametrize("parts", [1, 3])
def test_a_lookup_fills_the_callers_array(parts: int) -> None:
    table = first_values()["table"].value
    with cluster(1, 1) as (server,), session(server, partitioner=dps.partition.Fixed(parts)) as s:
        for rows in (chosen(1), np.sort(chosen(1)), chosen(1, repeat=True)):
            out = np.empty((N, WIDTH), np.float32)
            assert s.lookup("table", rows, out=out) is out
            np.testing.assert_array_equal(out, table[rows])
            wide = np.zeros((N, 2 * WIDTH), np.float32)
            s.lookup("table", rows, out=wide[:, ::2])
            np.testing.assert_array_equal(wide[:, ::2], table[rows])
            assert not wide[:, 1::2].any()
        with pytest.raises(ValueError, match=r"out is float64 \(700, 40\); wanted an array of float32 \(700, 40\)"):
            s.lookup("table", rows, out=np.empty((N, WIDTH)))


def test_a_lookup_does_not_write_two_variables_to_one_memory() -> None:
    """The rows of the variable that was written first were lost without a word."""
    params, wanted = {"v": np.ones(3), "w": np.zeros(3)}, {"v": [0, 1, 2], "w": [0, 1, 2]}
    whole = np.full(6, 7.0)
    with cluster(1, 1) as (server,), session(server, params=params) as s:
        for v, w in ((whole[:3], whole[2:5]), (whole[:3], whole[:3]), (whole[:3], whole[2::-1])):
            for lookup in (s.lookup, s.lookup_async):
                with pytest.raises(ValueError, match="lookup: out has one memory for v and w; give each an array of"):
                    lookup(wanted, out={"v": v, "w": w})
        assert (whole == 7).all()
        s.lookup(wanted, out={"v": whole[::2], "w": whole[1::2]})
        assert whole.tolist() == [1, 0] * 3


def test_an_array_whose_elements_share_memory_is_not_filled() -> None:
    """Each element had the value that was written last."""
    once = np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,))
    refused = r"out{} has one memory for several of its elements \(shape \(3,\), strides \(0,\)\); .*np.empty\(\(3,\)"
    with cluster(1, 1) as (server,), session(server, params={"v": np.arange(3.0)}) as s:
        s.pull(out={"v": np.zeros(3)})
        for call in (lambda: s.pull(["v"], out={"v": once}), lambda: s.step({"v": np.ones(3)}, out={"v": once})):
            with pytest.raises(ValueError, match=refused.format(" for v")):
                call()
        for call in (lambda: s.lookup("v", [0, 1, 2], out=once), lambda: s.lookup({"v": [0, 1, 2]}, out={"v": once})):
            with pytest.raises(ValueError, match=refused.format("")):
                call()
        assert s.global_step == 0
        assert s.lookup("v", [0], out=once[:1]).tolist() == [0.0]


def test_a_read_only_array_is_refused_before_anything_is_pushed_or_filled() -> None:
    """A step had pushed, and the arrays before it were filled."""
    fixed, free = np.zeros(3), np.full(3, 9.0)
    fixed.flags.writeable = False
    with cluster(1, 1) as (server,), session(server, params={"v": np.zeros(3), "w": np.zeros(3)}) as s:
        for call in (
            lambda: s.pull(out={"v": free, "w": fixed}), lambda: s.step({"v": np.ones(3)}, out={"v": free, "w": fixed}),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="out for w is read-only; wanted an array that can be written"):
                call()
        for lookup in (s.lookup, s.lookup_async):
            with pytest.raises(ValueError, match="lookup: out is read-only"):
                lookup("v", [0, 1, 2], out=fixed)
        assert s.global_step == 0 and (free == 9).all()


def test_gradients_values_and_row_numbers_with_a_mask_are_refused() -> None:
    """What the mask hid was taken as numbers."""
    masked, rows = np.ma.masked_array([1.0, 1e6, 1.0], [0, 1, 0]), np.ma.masked_array([0, 1], [0, 1])
    with cluster(1, 1) as (server,), session(server, params={"w": np.zeros(3)}) as s:
        for call in (
            lambda: s.push({"w": masked}), lambda: s.step({"w": masked}), lambda: s.assign({"w": masked}),
            lambda: s.push({"w": dps.Rows([0, 1, 2], masked)}),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=r"w is a masked array.*call .filled"):
                call()
        for call in (lambda: s.push({"w": dps.Rows(rows, [1.0, 1.0])}), lambda: s.lookup("w", rows)):
            with pytest.raises(TypeError, match=r"is a masked array.*call .filled"):
                call()
        assert s.global_step == 0 and not s.pull()["w"].any()


@pytest.mark.parametrize("repeat", [False, True])
def test_rows_of_any_shape_are_looked_up_and_pushed(repeat: bool) -> None:
    """As a batch of examples with several ids each has them; sums and values are those of the flat list."""
    table, shape = first_values()["table"].value, (N // 7, 7)
    rows, values = chosen(1, repeat=repeat), normal(1)
    with cluster(1, 1) as (server,), session(server) as s:
        got = s.lookup("table", rows.reshape(shape))
        np.testing.assert_array_equal(got, table[rows.reshape(shape)])
        out = np.empty((*shape, WIDTH), np.float32)
        assert s.lookup("table", rows.reshape(shape), out=out) is out
        np.testing.assert_array_equal(out, got)
        assert s.lookup("table", np.zeros((0, 3), np.int64)).shape == (0, 3, WIDTH)
        s.push({"table": dps.Rows(rows.reshape(shape), values.reshape(*shape, WIDTH))})
        np.testing.assert_array_equal(s.pull()["table"], after([(rows, values)]))
        with pytest.raises(ValueError, match=r"out for rows of shape \(100, 7\) has to be C-contiguous"):
            s.lookup("table", rows.reshape(shape), out=np.empty((7, 100, WIDTH), np.float32).transpose(1, 0, 2))
        with pytest.raises(ValueError, match=r"got values float32 \(700, 40\); wanted float32 \(100, 7, 40\)"):
            s.push({"table": dps.Rows(rows.reshape(shape), values)})
        with pytest.raises(ValueError, match=r"rows are integers of shape \(n,\) or \(n, m, ...\); got int64 \(\)"):
            s.lookup("table", 3)


@pytest.mark.parametrize("ps", [1, 2])
def test_several_tables_are_looked_up_at_one_time(ps: int) -> None:
    values = first_values()
    params = {
        "user": values["table"],
        "item": dps.Variable(values["table"].value[:50] + 1, sparse=True),
        "bias": values["bias"],
    }
    user, item = params["user"].value, params["item"].value
    wanted = {"user": chosen(1), "item": np.array([[3, 0], [3, 49]]), "bias": [1]}
    with cluster(ps, 1) as (server,), session(server, params=params) as s:
        found = s.lookup(wanted)
        assert list(found) == ["user", "item", "bias"]
        np.testing.assert_array_equal(found["user"], user[wanted["user"]])
        np.testing.assert_array_equal(found["item"], item[wanted["item"]])
        assert found["bias"].tolist() == [0.0]
        out = {"item": np.empty((2, 2, WIDTH), np.float32)}
        replies = [s.lookup_async(wanted, out=out), s.lookup_async({})]
        assert replies[0].result()["item"] is out["item"]
        np.testing.assert_array_equal(out["item"], found["item"])
        assert replies[1].result() == {}
        with pytest.raises(ValueError, match=r"row 50 of item is out of range; wanted 0 to 49"):
            s.lookup({"user": [0], "item": [50]})
        with pytest.raises(ValueError, match=r"lookup: out has \['items'\], wanted some of"):
            s.lookup({"item": [0]}, out={"items": out["item"]})
        with pytest.raises(TypeError, match=r"lookup takes \(name, rows, out=array\) or \({name: rows}"):
            s.lookup({"item": [0]}, [0])
        np.testing.assert_array_equal(s.lookup("user", [7]), user[[7]])


@pytest.mark.slow  # loads torch
def test_a_sparse_gradient_of_torch_is_pushed_as_it_is() -> None:
    torch = pytest.importorskip("torch", reason="sparse tensors need torch")
    table = first_values()["table"].value
    layer = torch.nn.Embedding(ROWS_OF_TABLE, WIDTH, sparse=True, _weight=torch.from_numpy(table.copy()))
    ids = torch.tensor([[5, 2, 5], [0, 9, 2]])
    layer(ids).sum().backward()
    wanted = table.copy()
    wanted[[0, 9]] -= 1.0
    wanted[[2, 5]] -= 2.0
    with cluster(1, 1) as (server,), session(server) as s:
        s.push({"table": layer.weight.grad})
        np.testing.assert_array_equal(s.pull()["table"], wanted)
        np.testing.assert_array_equal(s.lookup("table", ids), wanted[ids.numpy()])
        for shape in ((ROWS_OF_TABLE + 1, WIDTH), (ROWS_OF_TABLE, WIDTH + 1)):  # of another table
            other = torch.sparse_coo_tensor([[2, 0]], torch.ones(2, shape[1]), shape, check_invariants=True)
            with pytest.raises(ValueError, match=r"gradient of table has shape .*; the variable has"):
                s.push({"table": other})
        np.testing.assert_array_equal(s.pull()["table"], wanted)


def test_what_was_looked_up_is_the_callers_for_as_long_as_he_keeps_it() -> None:
    table = first_values()["table"].value
    with cluster(1, 1) as (server,), session(server) as s:
        lists = [chosen(i) for i in range(8)]
        found = [s.lookup("table", rows) for rows in lists]
        for rows, values in zip(lists, found, strict=True):
            np.testing.assert_array_equal(values, table[rows])
            values[...] = 0


def test_lookups_go_on_by_themselves_and_may_be_taken_in_any_order() -> None:
    table = first_values()["table"].value
    with cluster(2, 1) as (server,), session(server, partitioner=dps.partition.Fixed(2)) as s:
        lists = [chosen(i) for i in range(10)]
        replies = [s.lookup_async("table", rows) for rows in lists]
        for rows, reply in reversed(list(zip(lists, replies, strict=True))):
            np.testing.assert_array_equal(reply.result(), table[rows])
            assert reply.done()


def test_pushes_of_rows_that_overtake_each_other_do_not_share_memory() -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        pushes = [(chosen(i), normal(i)) for i in range(12)]
        replies = [s.push_async({"table": dps.Rows(*push)}) for push in pushes]
        assert all(reply.result().accepted for reply in replies)
        np.testing.assert_allclose(s.pull()["table"], after(pushes), rtol=1e-4, atol=1e-4)


def test_the_caller_may_change_his_row_numbers() -> None:
    table = first_values()["table"].value
    with cluster(1, 1) as (server,), session(server) as s:
        rows = chosen(1)
        for _ in range(3):
            rows[100:110] = (rows[100:110] + 1) % ROWS_OF_TABLE  # neither first, middle nor last
            np.testing.assert_array_equal(s.lookup("table", rows), table[rows])


# -- peers that mean no good --------------------------------------------------------------------------------------


@pytest.fixture
def hostile(server: dps.Server) -> Iterator[tuple[Any, dps.Session]]:
    """Asks the ps under the incarnation of a session, which must be served as ever afterwards."""
    with session(server) as s:
        caller = Caller(runtime(), "hostile", s._connection.home.keys)
        caller.incarnation = s._connection.caller.incarnation
        caller.expect(s._connection.peers[0].ref.address, PS)
        caller.connect(s._connection.peers[0].ref.address, s._connection.home.ticket)
        numbers = itertools.count(1)

        def ask(message: Any) -> Any:
            if isinstance(message, Push):
                next(numbers)
            return caller.ask(Ref(s._connection.peers[0].ref.address, PS), message, 5.0)

        before = s.lookup("table", chosen(1))
        caller._requests._last = s._connection.caller.next_number  # the session has said that all below it is read
        yield ask, s
        np.testing.assert_array_equal(s.lookup("table", chosen(1)), before)
        caller.close()


IDS = np.arange(N, dtype=np.int64)
NBYTES = N * WIDTH * 4


def place(what: str) -> Any:
    memory = SharedMemory(NBYTES)
    names: dict[str, Any] = {
        "beyond its end": [memory.name, 64],
        "before its beginning": [memory.name, -64],
        "not aligned": [memory.name, 8],
        "far away": [memory.name, 1 << 62],
        "another size than it has": [[*memory.name[:3], 4 * NBYTES], 0],
        "another process": [[1, *memory.name[1:]], 0],
        "no name": ["x", 0],
        "nothing": [None],
    }
    return memory, names[what]


PLACES = [
    "beyond its end", "before its beginning", "not aligned", "far away", "another size than it has",
    "another process", "no name", "nothing",
]  # fmt: skip


@pytest.mark.parametrize("what", PLACES)
def test_values_in_memory_that_is_not_the_senders_are_refused(hostile: Any, what: str) -> None:
    ask, s = hostile
    memory, where = place(what)
    number = s._pushes.numbers[0] + 1
    nbytes = IDS.nbytes + NBYTES
    push = Push(s._connection.membership.epoch, number, 0, 0, PARTS, nbytes, [], [[0, ROWS, where]], arrays=(IDS,))
    with pytest.raises((ProtocolError, Unavailable)):
        ask(push)
    assert s.push({"table": dps.Rows(IDS, np.zeros((N, WIDTH), np.float32))}).accepted
    del memory


@pytest.mark.parametrize("rows", [IDS + ROWS_OF_TABLE, IDS - 1, IDS * (1 << 52), np.full(N, -(1 << 63))])
def test_row_numbers_out_of_range_are_refused(hostile: Any, rows: Any) -> None:
    ask, s = hostile
    epoch = s._connection.membership.epoch
    with pytest.raises(ValueError, match="out of range"):
        ask(Lookup(epoch, 0, 0, 0, True, (rows,)))


def test_a_list_that_does_not_fit_its_values_or_its_part_is_refused(hostile: Any) -> None:
    ask, s = hostile
    epoch, numbers = s._connection.membership.epoch, s._pushes.numbers
    assert isinstance(ask(Lookup(epoch, 0, 0, 0, False, (IDS,))), RowsAnswer)
    values = np.zeros((N, WIDTH), np.float32)
    described: list[tuple[Any, tuple[Any, ...]]] = [
        ([[0, ROWS, []]], (IDS,)),
        ([[0, ROWS, []], [0, ROWS, []]], (IDS, values, IDS, values)),
        ([[0, DENSE, [None, 0]]], ()),
        ([[1, ROWS]], (IDS, values)),
        ([["x", ROWS, []]], (IDS, values)),
    ]
    for parts, arrays in described:
        with pytest.raises(ProtocolError):
            ask(Push(epoch, numbers[0] + 1, 0, 0, PARTS, 0, [], parts, arrays=arrays))
    assert isinstance(ask(Lookup(epoch, 0, 0, 0, False, (IDS.astype(np.int32),))), RowsAnswer)
    for bad in (IDS.astype(np.float64), IDS.reshape(1, -1), IDS.astype(np.int16)):
        with pytest.raises(ValueError, match="int64 of shape"):
            ask(Lookup(epoch, 0, 0, 0, False, (bad,)))
    for part, arrays in ((7, (IDS,)), (-1, (IDS,)), (1 << 40, (IDS,)), (0, ()), (0, (IDS, IDS))):
        with pytest.raises(ValueError, match="is not on"):
            ask(Lookup(epoch, 0, part, 0, False, arrays))


def test_what_one_session_makes_the_ps_keep_is_bounded(hostile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, s = hostile
    kinds = [
        type(ask(Lookup(s._connection.membership.epoch, 0, 0, 0, True, (IDS,)))) for _ in range(12)
    ]  # none of these says that an answer was read
    assert kinds.count(SharedRows) <= 4 and kinds[-1] is RowsAnswer


def test_the_memory_of_answers_goes_with_its_session() -> None:
    def shared_files() -> int:
        links = []
        for number in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{number}"))
            except FileNotFoundError:
                continue
        return sum("memfd:dps" in link for link in links)

    with cluster(1, 1) as (server,), session(server) as s:
        s.lookup("table", chosen(1))
        gc.collect()
        before = shared_files()
        for seed in range(3):
            with session(server.target) as other:
                other.lookup("table", chosen(seed))
                other.push({"table": dps.Rows(chosen(seed), normal(seed))})
            del other
        clock = runtime()
        end = clock.now() + 10
        while clock.now() < end and shared_files() > before:
            s.lookup("table", chosen(1))
            gc.collect()
        assert shared_files() <= before


def test_where_the_ps_has_no_memory_left_rows_come_over_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: Any, nbytes: int) -> Any:
        raise Unavailable(f"{nbytes} bytes of shared memory are not to be had")

    table = first_values()["table"].value
    with cluster(1, 1) as (server,), session(server) as s:
        assert s._connection.peers[0].lane.on
        monkeypatch.setattr(type(runtime()), "share", none_left)
        np.testing.assert_array_equal(s.lookup("table", chosen(1)), table[chosen(1)])
        assert s.push({"table": dps.Rows(chosen(1), normal(1))}).accepted
        np.testing.assert_array_equal(s.pull()["table"], after([(chosen(1), normal(1))]))


def test_where_memory_cannot_be_reached_any_more_rows_go_over_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    from dps.ps.intake.borrowed import Borrowed

    def unreachable(self: Any, *_: Any) -> Any:
        raise Unavailable("no such process here")

    table = first_values()["table"].value
    with cluster(1, 1) as (server,), session(server) as s:
        monkeypatch.setattr(Borrowed, "run", unreachable)
        assert s.push({"table": dps.Rows(chosen(1), normal(1))}).accepted
        np.testing.assert_array_equal(s.pull()["table"], after([(chosen(1), normal(1))]))
    monkeypatch.undo()
    with cluster(1, 1) as (server,), session(server) as s:
        monkeypatch.setattr(s._connection.peers[0].lane, "attach", lambda name: unreachable(None))
        np.testing.assert_array_equal(s.lookup("table", chosen(1)), table[chosen(1)])
        assert not s._connection.peers[0].lane.on
