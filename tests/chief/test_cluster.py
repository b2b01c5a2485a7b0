"""Which nodes have registered, under which task."""

from __future__ import annotations

from dps.chief.cluster import Nodes


def test_expected_nodes_are_missing_until_they_register_and_while_they_are_away() -> None:
    nodes = Nodes("ps", [0, 2])
    assert nodes.missing() == [0, 2]
    assert nodes.register(2, "a:1", 11) == (2, False)
    assert nodes.missing() == [0] and nodes.addresses() == {2: "a:1"} and nodes.at("a:1") == 2
    nodes.known[2].alive = False
    assert nodes.missing() == [0, 2] and nodes.at("a:1") is None


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


def test_where_nothing_is_expected_those_that_came_are() -> None:
    nodes = Nodes("worker", [])
    assert nodes.missing() == []
    nodes.register(3, "a:1", 11)
    nodes.known[3].alive = False
    assert nodes.missing() == [3]
