"""Which nodes have registered, under which task."""

from __future__ import annotations

from dps.chief.cluster import Cluster, Nodes


def test_expected_nodes_are_missing_until_they_register_and_while_they_are_away() -> None:
    nodes = Nodes("ps", [0, 2])
    assert nodes.missing() == [0, 2]
    assert nodes.register(2, "a:1", 11) == (2, False)
    assert nodes.missing() == [0] and nodes.addresses() == {2: "a:1"} and nodes.task_at("a:1") == 2
    nodes.known[2].alive = False
    assert nodes.missing() == [0, 2] and nodes.task_at("a:1") is None


def test_a_node_that_leaves_its_task_out_gets_the_lowest_that_is_free_and_keeps_it() -> None:
    nodes = Nodes("worker", [1, 4])
    assert nodes.register(-1, "a:1", 11) == (1, False)
    assert nodes.register(-1, "b:1", 12) == (4, False)
    assert nodes.register(-1, "c:1", 13) == (0, False)  # more than were expected
    assert nodes.register(-1, "a:1", 11) == (1, False)


def test_another_process_takes_the_place_of_one_that_died() -> None:
    nodes = Nodes("worker", [])
    nodes.register(-1, "a:1", 11)
    nodes.known[0].alive = False
    assert nodes.register(-1, "b:1", 12) == (0, True)
    assert nodes.register(0, "c:1", 13) == (0, True) and nodes.addresses() == {0: "c:1"}


def test_a_node_that_says_that_it_ends_is_missing_but_not_away_and_says_it_once_for_its_own_process() -> None:
    nodes = Nodes("worker", [0, 1, 2])
    nodes.register(0, "a:1", 11, ticket="one")
    nodes.register(1, "b:1", 12, ticket="two")
    assert nodes.mark_left(0, "two") is None and nodes.mark_left(2, "three") is None
    assert nodes.mark_left(0, "one") == "a:1" and nodes.mark_left(0, "one") is None
    assert nodes.mark_left(1, None) == "b:1"  # its launcher has no ticket of it
    assert nodes.missing() == [0, 1, 2] and nodes.away() == [2]
    nodes.register(0, "a:2", 14)
    assert nodes.missing() == [1, 2] and nodes.task_at("a:2") == 0


def test_where_nothing_is_expected_those_that_came_are() -> None:
    nodes = Nodes("worker", [])
    assert nodes.missing() == []
    nodes.register(3, "a:1", 11)
    nodes.known[3].alive = False
    assert nodes.missing() == [3]


def test_the_cluster_is_complete_when_all_ps_are_there_and_says_for_whom_it_waits() -> None:
    cluster = Cluster([0, 1], [])
    assert not cluster.is_complete() and cluster.missing_text(0.0) == "ps:0, ps:1"
    cluster.ps.register(0, "a:1", 1)
    cluster.ps.register(1, "b:1", 2)
    assert cluster.is_complete() and not Cluster([], []).is_complete() and Cluster([], []).missing_text(0.0) == "a ps"
    assert cluster.ps.mark_lost("b:1") == 1 and cluster.ps.mark_lost("b:1") is None
    cluster.mark_ps_away(1, 10.0)
    cluster.mark_ps_away(1, 12.0)  # since its first loss
    assert not cluster.is_complete() and cluster.missing_text(14.0) == "ps:1 (4 s)"
    assert (cluster.away_s(1, 14.0), cluster.away_s(0, 14.0)) == (4.0, 0.0)
    cluster.mark_ps_back(1)
    assert cluster.away_s(1, 14.0) == 0.0


def test_with_a_plan_only_its_ps_are_waited_for() -> None:
    cluster = Cluster([0, 1, 2], [])
    cluster.ps.register(1, "b:1", 1)
    assert all(cluster.is_needed(task) for task in (0, 1, 2))
    cluster.holders = (1,)
    assert cluster.is_complete() and cluster.missing() == [] and not cluster.is_needed(0)
    cluster.ps.mark_lost("b:1")
    assert not cluster.is_complete() and cluster.missing_text(0.0) == "ps:1"


def test_a_process_is_known_by_its_number_and_jobs_that_do_not_register_are_always_known() -> None:
    cluster = Cluster([0], [0])
    cluster.workers.register(0, "w:1", 5)
    assert cluster.knows_process("worker", 0, 5) and cluster.knows_process("client", 0, 9)
    assert not cluster.knows_process("worker", 0, 6) and not cluster.knows_process("worker", 1, 5)
    assert cluster.to_wire() == {"ps": {}, "worker": {"0": "w:1"}} and cluster.living() == ["w:1"]
