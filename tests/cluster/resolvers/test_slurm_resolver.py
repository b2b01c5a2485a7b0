from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps.cluster import ClusterSpec, Task
from dps.cluster.resolvers.slurm import expand_hostlist, expand_tasks_per_node, slurm
from dps.errors import ConfigError


def step(rank: int, tasks: int, nodes: str, per_node: str, **more: str) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        **more,
    }


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("t02n13,t02n41", ["t02n13", "t02n41"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[01-03]-ib", ["n01-ib", "n02-ib", "n03-ib"]),
        ("n[1,3-4,007]", ["n1", "n3", "n4", "n007"]),
        ("r[1-2]n[01-02].x", ["r1n01.x", "r1n02.x", "r2n01.x", "r2n02.x"]),
        ("login,n[2,10],z[1-2]a", ["login", "n2", "n10", "z1a", "z2a"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_a_host_list_is_expanded_in_its_order(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize(
    "text", ["", ",", "n1,", "n1,,n2", "n[", "n[1", "n]1", "n[]", "n[a-b]", "n[3-1]", "n[1-]", "n[[1]]"]
)
def test_a_broken_host_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="host list: got"):
        expand_hostlist(text)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 120), st.integers(0, 9), st.integers(1, 4)), min_size=1)
)
def test_expanding_a_host_list_gives_every_number_of_every_range(
    ranges: list[tuple[str, int, int, int]],
) -> None:
    text = ",".join(f"{name}[{low:0{width}}-{low + more:0{width}}]x" for name, low, more, width in ranges)
    assert expand_hostlist(text) == [
        f"{name}{number:0{width}}x" for name, low, more, width in ranges for number in range(low, low + more + 1)
    ]


def test_tasks_per_node_are_expanded() -> None:
    assert expand_tasks_per_node("2") == [2]
    assert expand_tasks_per_node("3(x2),1") == [3, 3, 1]
    for text in ("", "x2", "3(2)", "3,", "-1"):
        with pytest.raises(ConfigError, match="tasks per node: got"):
            expand_tasks_per_node(text)


def test_jobs_take_consecutive_ranks_sorted_by_name_and_ports_count_on_each_node() -> None:
    jobs = {"worker": 5, "ps": 2}
    cluster, task = slurm(step(3, 7, "n[2,10,11]", "3(x2),1"), jobs, port_base=9000)
    assert cluster == ClusterSpec(
        {"ps": ["n2:9000", "n2:9001"], "worker": ["n2:9002", "n10:9000", "n10:9001", "n10:9002", "n11:9000"]}
    )
    assert task == Task("worker", 1)
    assert slurm(step(1, 7, "n[2,10,11]", "3(x2),1"), jobs)[1] == Task("ps", 1)


def test_ports_begin_at_8888_and_one_ps_serves_the_rest_unless_said() -> None:
    cluster, task = slurm(step(0, 3, "a,b,c", "1(x3)"))
    assert cluster == ClusterSpec({"ps": ["a:8888"], "worker": ["b:8888", "c:8888"]})
    assert task == Task("ps", 0)
    assert slurm(step(0, 1, "a", "1"))[0] == ClusterSpec({"worker": ["a:8888"]})


def test_a_rank_that_no_job_takes_has_no_task() -> None:
    cluster, task = slurm(step(2, 3, "a", "3"), {"ps": 1, "worker": 1})
    assert cluster == ClusterSpec({"ps": ["a:8888"], "worker": ["a:8889"]})
    assert task is None


def test_master_takes_the_rank_of_chief() -> None:
    cluster, task = slurm(step(0, 2, "a", "2"), {"master": 1, "dealer": 1})
    assert cluster == ClusterSpec({"chief": ["a:8888"], "dealer": ["a:8889"]})
    assert task == Task("chief", 0)


def test_asking_for_more_tasks_than_the_step_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="wanted no more than the 3 tasks"):
        slurm(step(0, 3, "a", "3"), {"ps": 2, "worker": 2})


@pytest.mark.parametrize(
    "environ",
    [step(0, 3, "a,b", "3"), step(0, 4, "a", "3"), step(3, 3, "a", "3")],
)
def test_variables_at_odds_with_one_another_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="Slurm: got SLURM_PROCID="):
        slurm(environ)


def test_a_missing_or_broken_variable_is_named() -> None:
    environ = step(0, 3, "a", "3")
    del environ["SLURM_STEP_NODELIST"]
    with pytest.raises(ConfigError, match=r"got no SLURM_STEP_NODELIST.*srun"):
        slurm(environ)
    with pytest.raises(ConfigError, match="SLURM_PROCID='one'"):
        slurm(step(0, 3, "a", "3") | {"SLURM_PROCID": "one"})


def test_ranks_that_are_not_dealt_out_in_blocks_are_refused() -> None:
    in_blocks = step(1, 4, "a,b", "2(x2)", SLURM_NODEID="0", SLURM_LOCALID="1")
    assert slurm(in_blocks)[1] == Task("worker", 0)
    with pytest.raises(ConfigError, match=r"SLURM_NODEID=1 for rank 1, wanted 0.*--distribution=block"):
        slurm(in_blocks | {"SLURM_NODEID": "1", "SLURM_LOCALID": "0"})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 3), st.integers(1000, 60_000))
def test_every_rank_sees_one_cluster_and_is_another_task_of_it(counts: list[int], ps: int, base: int) -> None:
    """Rank r is the r-th place in node order; ports rise from the base on each node; jobs take ranks by name."""
    total = sum(counts)
    ps = min(ps, total - 1)
    nodes = ",".join(f"n{i}" for i in range(len(counts)))
    places = [f"n{node}:{base + position}" for node, count in enumerate(counts) for position in range(count)]
    jobs = {"worker": total - ps, "ps": ps}
    seen = [slurm(step(rank, total, nodes, ",".join(map(str, counts))), jobs, base) for rank in range(total)]
    for rank, (cluster, task) in enumerate(seen):
        assert cluster == seen[0][0] and task is not None
        assert cluster.task_address(task.job, task.index) == places[rank]
        assert task == (Task("ps", rank) if rank < ps else Task("worker", rank - ps))
