"""What first values leave behind goes back to the system, in tasks whose malloc keeps large blocks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import dps
from dps.client import reports as surplus
from dps.process import config
from dps.transport.current import runtime
from tests.tuned import tune

HELD = """
import numpy as np
from dps.process import config
from dps.client import reports as surplus
from dps.transport.current import runtime
assert config.keep_large_blocks()

def held():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) >> 10

before = held()
table = np.ones(16 << 20).astype(np.float32)  # 64 MB, out of 128 MB that are free by now
made = held() - before
left = surplus.surplus_of([table[1:]], runtime())
opened = held() - before
left = surplus.give_back(left)
assert left
del table
let_go = held() - before
assert surplus.give_back(left) == []
print(made, opened, let_go, held() - before)
"""


@pytest.mark.skipif(sys.platform != "linux" or not config.is_glibc(), reason="needs Linux and glibc")
def test_memory_of_large_first_values_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLIBC_TUNABLES", *config.MALLOC):
        monkeypatch.delenv(name, raising=False)
    ended = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    made, opened, let_go, given_back = map(int, ended.stdout.split())  # MB
    assert made > 150  # the table, and what it was computed from
    assert 60 < opened < 100 and let_go > 60  # the program has the table; malloc has it then
    assert given_back < 30


def test_a_session_trims_when_it_opens_and_at_the_push_after_the_values_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(config, "large_blocks_are_kept", lambda: True)
    monkeypatch.setattr(config, "trim_memory", lambda: trimmed.append(1))
    tune(monkeypatch, client__surplus_nbytes=8000)
    large, small, ones = np.zeros(1000), np.zeros(10), {"small": np.ones(10)}
    with dps.Server.create_local_server() as server:
        with dps.Session(server, {"large": large, "small": small}, optimizer=dps.optim.SGD(1.0)) as session:
            assert len(trimmed) == 1
            session.push(ones)
            assert len(trimmed) == 1
            del large
            session.push(ones)
            assert len(trimmed) == 2 and session._reports._surplus == []
        with dps.Session(server, {"large": np.zeros(1000), "small": small}, optimizer=dps.optim.SGD(1.0)) as session:
            session.push(ones)
            assert len(trimmed) == 4


def test_small_values_and_an_ordinary_malloc_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "trim_memory", lambda: pytest.fail("nothing is to be trimmed"))
    for kept, least in ((True, 8001), (False, 1)):
        monkeypatch.setattr(config, "large_blocks_are_kept", lambda kept=kept: kept)
        tune(monkeypatch, client__surplus_nbytes=least)
        assert surplus.surplus_of([np.zeros(1000)], runtime()) == []
