"""Messages and models to bytes and back: what a small message costs before a socket is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dps import optim
from dps.client.assembly import Assembly, gather
from dps.cluster.placement import RoundRobin
from dps.messages.sessions import Lookup, Pull, Push
from dps.monitor import works
from dps.transport.message import Message
from dps.transport.wire import Envelope, decode, encode
from dps.variables.layout import check_gradients
from dps.variables.plan import Plan
from dps.variables.planning import plan_of
from dps.variables.tree import Nesting, leaves

PIECE = np.zeros(1 << 20, np.uint8)
MESSAGES: dict[str, Message] = {
    "pull": Pull(1, 0, 0, 0, -1, []),
    "push of 4 KB": Push(1, 1, 0, 0, 1, 4096, [0], [], 0, arrays=(PIECE[:4096],)),
    "push of 1 MB": Push(1, 1, 0, 0, 1, 1 << 20, [0], [], 0, arrays=(PIECE,)),
    "lookup of 8,192 rows": Lookup(1, 0, 0, arrays=(np.arange(8192),)),
}
COUNTS = [1, 161, 10_000]
"""Variables of a model, 16 float32 each."""


@pytest.mark.parametrize("name", MESSAGES)
def test_encode(benchmark: BenchmarkFixture, name: str) -> None:
    benchmark(encode, Envelope(MESSAGES[name], "ps", 1, "127.0.0.1:2222", 7))


@pytest.mark.parametrize("name", MESSAGES)
def test_decode(benchmark: BenchmarkFixture, name: str) -> None:
    header, arrays = encode(Envelope(MESSAGES[name], "ps", 1, "127.0.0.1:2222", 7))
    found = benchmark(decode, header, [array.data for array in arrays])
    assert type(found.message) is type(MESSAGES[name])


def model(count: int) -> tuple[dict[str, Any], Plan]:
    params = works.params(f"{count}x16")
    plan, _ = plan_of(params, optim.SGD(0.1), [0], RoundRobin(1), None)
    return params, plan


@pytest.mark.parametrize("count", COUNTS)
def test_plan(benchmark: BenchmarkFixture, count: int) -> None:
    params = works.params(f"{count}x16")
    plan, _ = benchmark(plan_of, params, optim.SGD(0.1), [0], RoundRobin(1), None)
    assert len(plan.parts) == count


@pytest.mark.parametrize("count", COUNTS)
def test_gradients_checked(benchmark: BenchmarkFixture, count: int) -> None:
    params, plan = model(count)
    assert len(benchmark(lambda: check_gradients(plan, list(leaves(params))))) == count


@pytest.mark.parametrize("count", COUNTS)
def test_gradients_gathered(benchmark: BenchmarkFixture, count: int) -> None:
    params, plan = model(count)
    gradients, layout = check_gradients(plan, list(leaves(params))), plan.layouts[0]
    run = np.zeros(layout.nbytes, np.uint8)
    benchmark(lambda: gather(plan, layout, gradients, layout.flats(run)))


@pytest.mark.parametrize("count", COUNTS)
def test_values_assembled(benchmark: BenchmarkFixture, count: int) -> None:
    params, plan = model(count)
    layout, assembly = plan.layouts[0], Assembly(plan, Nesting(params))
    run = np.zeros(layout.nbytes, np.uint8)
    tree = benchmark(lambda: assembly.values(layout.listed(layout.memories(run))))
    assert len(tree) == count
