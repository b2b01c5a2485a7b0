"""What `make demo` asks of its cluster. CI runs the demo itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

import pytest

import dps
from dps.cluster.placement import RoundRobin
from dps.cluster.setter import spread
from dps.variables.tree import leaves
from tests.examples.processes import EXAMPLES


class Opened(Exception):
    """A session would be opened: with these parameters and settings."""


class Cluster:
    """A LocalCluster whose first worker runs here, without a server."""

    def __init__(self, ps: int, **_: Any) -> None:
        self.ps = ps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, train: Callable[..., Any], *args: Any) -> Any:
        return train(None, *args)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def opens(server: Any, params: Any, **settings: Any) -> NoReturn:
        raise Opened(params, settings)

    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(dps, "Session", opens)
    monkeypatch.setattr(dps, "LocalCluster", Cluster)
    monkeypatch.setattr(importlib.import_module("mnist"), "images_and_labels", lambda: (None,) * 4)
    yield importlib.import_module("demo")
    for name in ("demo", "mnist"):
        del sys.modules[name]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_both_ps_of_the_demo_have_about_half_of_the_bytes(demo: Any, mode: str) -> None:
    with pytest.raises(Opened) as opened:
        demo.trained(mode)
    params, settings = opened.value.args
    variables = [(name, array.shape, array.dtype) for name, array in leaves(params)]
    assert spread(variables, RoundRobin(demo.PS), settings["partitioner"], demo.PS) < 1.1
    assert spread(variables, RoundRobin(demo.PS), None, demo.PS) > 1.9  # what it was
