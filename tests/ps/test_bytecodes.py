"""How many bytecodes a ps runs for a small push, from its message to its answer: a bound for each update mode."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dps
from dps.ps.server import PsActor
from tests.hooks.loops import session
from tests.in_process import cluster
from tests.tracing.test_cost import Counter, nodes
from tests.tuned import tune

SLACK = 1.05 if sys.version_info[:2] == (3, 11) else 1.4
"""The bounds are of Python 3.11; others cut the same code into more bytecodes."""
MOST = {
    ("async", "push"): 1265, ("async", "step"): 1650,
    ("bounded", "push"): 1360, ("sync", "push"): 1715, ("sync", "step"): 1715,
}  # fmt: skip
"""The bytecodes of `dps/` outside of the transport that handle one push, by update mode and what the session calls."""


def dearest(least: dict[str, int], count: int = 25) -> str:
    """The functions that run the most bytecodes, one a line."""
    found = sorted(least.items(), key=lambda item: -item[1])[:count]
    return "\n".join(f"{number:6} {function}" for function, number in found)


def handled(ps: Any, call: Callable[[], Any], times: int = 40) -> Counter:
    """The bytecodes of the ps's node for the pushes that `call` makes, one each time."""
    found = Counter(PsActor.take_Push.__code__)
    for _ in range(3):
        call()
    ps.node.post(lambda: sys.settrace(found))
    for _ in range(times):
        call()
    ps.node.post(lambda: sys.settrace(None))
    call()
    assert found.calls >= times // 2
    return found


@pytest.mark.parametrize(("update", "work"), MOST)
def test_a_ps_handles_a_small_push_within_its_bound(update: str, work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, client__step_patience_s=5.0, client__probe_s=60.0)  # also on a busy machine it goes one way
    mode: Any = dps.Bounded(2) if update == "bounded" else update
    with cluster(update=mode) as (server,), session(server) as s:
        (ps,) = [actor for actor in nodes() if getattr(actor, "shard", None) and actor.shard.ledgers]
        found = handled(ps, lambda: getattr(s, work)({"a": np.ones(2)}))
        most = MOST[update, work] * SLACK
        assert min(found.totals) <= most, f"{min(found.totals)} bytecodes, wanted {most:.0f}:\n{dearest(found.least)}"
