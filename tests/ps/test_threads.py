"""`threads` of a ps: the same bits with one, several and "auto", in each update mode; and what is no such number."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.process import config
from dps.ps.store import thread_pool as pool
from dps.ps.store.gradients import Gradient, GradientPieces
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import VariableSpec, make_plan
from tests.in_process import bind
from tests.tuned import tune

SIZE = (1 << 16) + 7
OPTIMIZERS = [dps.optim.SGD(0.1), dps.optim.Adam(0.01)]


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are shared as those of large arenas are, also where there is one processor."""
    tune(monkeypatch, store__pool_piece_nbytes=1 << 12, store__pool_nbytes=1 << 14)
    monkeypatch.setattr(pool, "cores", lambda: 4)


def now_and_then() -> int:
    """0 to 2 cores are free, and now and then some are missing."""
    return (1, 2, -1, 0, 1)[next(_moments) % 5]


_moments = itertools.count()
FREE = {"auto": now_and_then}


def trained(threads: int | str, optimizer: Any, update: Any, dtype: Any) -> tuple[bytes, int]:
    """The values after some steps and a refused one; and how many passes had help."""
    orders: list[int] = []
    put = pool.ThreadPool._start
    rng = np.random.default_rng(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.ThreadPool, "_start", lambda self: (orders.append(1), put(self)))
        patch.setattr(pool, "free_cores", lambda: FREE[str(threads)])
        threads = str(threads).partition(",")[0]
        with dps.Server(None, "chief", 0, bind=bind("inproc"), ps=1, workers=1, owned=True) as chief:
            own = {"chief": chief.address, "bind": bind("inproc")}
            with dps.Server(None, "ps", 0, threads=threads, **own):
                own["bind"] = bind("inproc")
                with dps.Server(None, "worker", 0, **own) as server:
                    values = {"w": rng.standard_normal(SIZE).astype(dtype)}
                    with dps.Session(server, values, optimizer=optimizer, update=update, timeout=30) as session:
                        for _ in range(3):
                            session.push({"w": rng.standard_normal(SIZE).astype(dtype)})
                        bad = np.ones(SIZE, dtype)
                        bad[SIZE - 3] = np.inf
                        with pytest.raises(ValueError, match="the gradient of w has NaN or infinite values"):
                            session.push({"w": bad})
                        return session.pull()["w"].tobytes(), len(orders)


@pytest.mark.thinned
@pytest.mark.slow
@pytest.mark.parametrize("update", [dps.Async(), dps.SyncReplicas()], ids=["async", "sync"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adam"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_bits_of_a_training_do_not_depend_on_the_threads_of_its_ps(optimizer: Any, update: Any, dtype: Any) -> None:
    alone, helped = trained(1, optimizer, update, dtype)
    assert helped == 0
    for threads in (3, *FREE):
        values, helped = trained(threads, optimizer, update, dtype)
        assert values == alone
        assert helped >= 1


@pytest.mark.parametrize(("given", "wanted"), [(1, 1), ("3", 3), (" Auto ", config.AUTO)])
def test_threads_are_a_number_or_auto(given: int | str, wanted: int) -> None:
    assert config.parse_threads(given) == wanted


@pytest.mark.parametrize("given", [0, -1, "two", "", "1.5", 5000])
def test_other_threads_are_refused_in_one_line(given: int | str) -> None:
    with pytest.raises(ConfigError, match=r"^got .* threads for a ps; wanted a whole number from 1, or auto$"):
        dps.Server(None, "ps", 0, chief="127.0.0.1:1", threads=given)


def test_a_ps_has_as_many_threads_as_cores_are_free_unless_it_is_told_otherwise() -> None:
    server = dps.Server(None, "ps", 0, chief="127.0.0.1:1")
    try:
        assert server._ps_actor is not None and server._ps_actor.threads == config.AUTO
    finally:
        server.stop()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adam"])
def test_the_bits_of_a_push_in_pieces_do_not_depend_on_threads_nor_on_how_it_was_cut(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, store__group_nbytes=1 << 15)
    rng = np.random.default_rng(2)
    spec = VariableSpec("w", (SIZE,), "<f4", optimizer.to_wire())
    layout = make_plan([spec], (0,), lambda *_: 0, None).layouts[0]
    gradients = [rng.standard_normal(SIZE).astype(np.float32) for _ in range(3)]
    found = []
    many = list(range(0, SIZE, 1111))
    for threads, cuts in [(1, []), (1, [10, 9000]), (2, [10, 9000]), (3, many), (config.AUTO, [SIZE - 1])]:
        store = Store(layout, runtime(), threads=threads)
        for step, gradient in enumerate(gradients, 1):
            pieces = GradientPieces(np.split(gradient, cuts)) if cuts else gradient
            assert store.apply_update(Gradient([pieces], {}), step) == ""
        found.append((store.arenas[0].values.tobytes(), [slot.tobytes() for slot in store.arenas[0].slots.values()]))
        store.close()
    assert all(one == found[0] for one in found)
