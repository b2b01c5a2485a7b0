"""What Ray is asked for, and which addresses are none, without a Ray."""

from __future__ import annotations

import pytest

from dps.errors import ConfigError
from dps.launch.engines.ray import bundle, shortage
from dps.launch.hosts.ray_actors import check_address
from dps.launch.supervision.plan import Resources


def test_a_task_that_says_nothing_gets_one_processor() -> None:
    assert bundle(Resources()) == {"CPU": 1.0}
    assert bundle(Resources(2, 1 << 30, 1)) == {"CPU": 2.0, "GPU": 1.0, "memory": float(1 << 30)}


def test_more_than_all_nodes_or_any_one_has_is_known_at_once() -> None:
    nodes = [{"CPU": 4.0, "memory": 8.0}, {"CPU": 4.0, "GPU": 1.0, "memory": 8.0}]
    assert shortage([{"CPU": 4.0}, {"CPU": 3.0, "GPU": 1.0}], nodes) == ""
    assert shortage([{"CPU": 3.0}] * 3, nodes) == "the tasks want CPU: 9; its nodes have 8"
    assert shortage([{"CPU": 1.0, "memory": 9.0}], nodes) == "a task wants memory: 9; no node has more than 8"
    assert shortage([{"CPU": 1.0, "GPU": 2.0}], nodes) == "the tasks want GPU: 2; its nodes have 1"
    assert shortage([{"CPU": 1.0}], []) == "the tasks want CPU: 1; its nodes have 0"


@pytest.mark.parametrize("address", ["nonsense", "ray://box:10001", "ipc:///tmp/x"])
def test_what_is_no_address_of_a_head_is_told_before_anything_starts(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"got RAY_ADDRESS={address}, .*wanted HOST:PORT of"):
        check_address()
    for good in ("", "auto", "local", "box:6379"):
        monkeypatch.setenv("RAY_ADDRESS", good)
        check_address()
