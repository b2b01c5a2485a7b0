from __future__ import annotations

from collections.abc import Sequence

import pytest
from numpy.typing import DTypeLike

from dps.cluster import ClusterSpec, Device, ReplicaDeviceSetter, replica_device_setter
from dps.cluster.placement import Greedy
from dps.errors import PlacementError


def made(setter: ReplicaDeviceSetter | None) -> ReplicaDeviceSetter:
    assert setter is not None
    return setter


def placed(setter: ReplicaDeviceSetter, *scopes: str) -> list[str]:
    return [str(setter.variable(f"v{i}", scope=scope)) for i, scope in enumerate(scopes)]


def test_variables_go_round_the_ps_tasks_and_work_to_the_workers() -> None:
    setter = made(replica_device_setter(ps_tasks=2))
    assert placed(setter, "", "", "") == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert str(setter.compute()) == "/job:worker"
    assert str(setter.compute("/gpu:0")) == "/job:worker/device:GPU:0"
    assert str(setter.compute("/job:moon")) == "/job:moon"


def test_another_job_in_the_scope_leaves_the_counter_alone() -> None:
    setter = made(replica_device_setter(ps_tasks=2))
    assert placed(setter, "", "/job:moon/task:7", "") == ["/job:ps/task:0", "/job:moon/task:7", "/job:ps/task:1"]


def test_a_named_ps_task_wins_and_the_counter_still_moves() -> None:
    setter = made(replica_device_setter(ps_tasks=3))
    assert placed(setter, "/job:ps/task:2", "/task:2", "") == ["/job:ps/task:2"] * 3
    assert placed(setter, "/job:ps", "/cpu:0") == ["/job:ps/task:0", "/job:ps/task:1/device:CPU:0"]


def test_each_setter_has_its_own_counter() -> None:
    one, other = made(replica_device_setter(ps_tasks=2)), made(replica_device_setter(ps_tasks=2))
    assert placed(one, "") + placed(other, "") + placed(one, "") == ["/job:ps/task:0"] * 2 + ["/job:ps/task:1"]


def test_the_cluster_says_how_many_ps_tasks_there_are() -> None:
    cluster = {"ps": ["a:1", "b:1"], "worker": ["c:1"]}
    for given in (cluster, ClusterSpec(cluster)):
        setter = made(replica_device_setter(ps_tasks=9, cluster=given))
        assert placed(setter, "", "", "") == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]


def test_with_a_sparse_ps_job_variables_go_to_the_tasks_that_exist() -> None:
    cluster = {"ps": {1: "a:1", 4: "b:1"}}
    setter = made(replica_device_setter(cluster=cluster))
    assert placed(setter, "", "", "") == ["/job:ps/task:1", "/job:ps/task:4", "/job:ps/task:1"]
    by_load = made(replica_device_setter(cluster=cluster, ps_strategy=Greedy(2)))
    assert [by_load.variable("v", (size,), "int8").task for size in (9, 4, 4)] == [1, 4, 4]


@pytest.mark.parametrize("cluster", [{}, {"worker": ["a:1"]}, {"ps": []}])
def test_without_a_ps_task_there_is_no_setter(cluster: dict[str, object]) -> None:
    assert replica_device_setter(ps_tasks=2, cluster=cluster) is None
    assert replica_device_setter() is None
    assert replica_device_setter(ps_tasks=0) is None


def test_other_jobs_and_devices_can_be_named() -> None:
    setter = made(
        replica_device_setter(
            ps_device="/job:store/cpu:0", worker_device="/job:trainer/task:3/gpu:1", cluster={"store": ["a:1", "b:1"]}
        )
    )
    assert placed(setter, "", "/gpu:0") == ["/job:store/task:0/device:CPU:0", "/job:store/task:1/device:GPU:0"]
    assert str(setter.compute("/cpu")) == "/job:trainer/task:3/device:CPU:1"


def test_a_ps_device_without_a_job_gets_no_task() -> None:
    setter = made(replica_device_setter(ps_tasks=1, ps_device="/cpu:0"))
    assert placed(setter, "", "/job:moon") == ["/device:CPU:0", "/job:moon/device:CPU:0"]
    assert str(setter.compute()) == "/job:worker"
    everywhere_alike = made(replica_device_setter(ps_tasks=1, ps_device=""))
    assert placed(everywhere_alike, "") == ["/job:worker"]


def test_without_merging_a_scope_replaces_the_answer_and_takes_no_turn() -> None:
    setter = made(replica_device_setter(ps_tasks=2, merge_devices=False))
    assert placed(setter, "", "/cpu:0", "/job:ps", "") == [
        "/job:ps/task:0",
        "/device:CPU:0",
        "/job:ps",
        "/job:ps/task:1",
    ]
    assert str(setter.compute("/gpu:0")) == "/device:GPU:0"
    assert str(setter.compute()) == "/job:worker"


def test_a_strategy_sees_name_shape_and_dtype() -> None:
    seen: list[object] = []

    def strategy(name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
        seen.append((name, shape, dtype))
        return 1

    setter = made(replica_device_setter(ps_tasks=2, ps_strategy=strategy))
    assert setter.variable("w", (2, 3), "int8") == Device("/job:ps/task:1")
    assert setter.variable("away", (2, 3), "int8", scope="/job:moon") == Device("/job:moon")
    assert seen == [("w", (2, 3), "int8")]


def test_nonsense_is_refused() -> None:
    with pytest.raises(PlacementError, match="placement of 'w': got 5"):
        made(replica_device_setter(ps_tasks=2, ps_strategy=lambda *args: 5)).variable("w")
    with pytest.raises(PlacementError, match="'w': got the scope '/task:7', wanted a task of ps: 0, 1"):
        made(replica_device_setter(ps_tasks=2)).variable("w", scope="/task:7")
    with pytest.raises(TypeError, match="ps_strategy: got 'greedy'"):
        replica_device_setter(ps_tasks=2, ps_strategy="greedy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ps_tasks: got -1"):
        replica_device_setter(ps_tasks=-1)
