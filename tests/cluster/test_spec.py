from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps.cluster import ClusterSpec, Task
from dps.errors import ConfigError

MIXED = {"ps": ["a:1", "b:1"], "worker": {0: "c:1", 3: "d:1"}, "my_job": []}


def test_a_mixed_cluster_answers_every_question() -> None:
    cluster = ClusterSpec(MIXED)
    assert cluster.jobs == ["ps", "worker", "my_job"]
    assert [cluster.num_tasks(job) for job in cluster.jobs] == [2, 2, 0]
    assert [cluster.task_indices(job) for job in cluster.jobs] == [[0, 1], [0, 3], []]
    assert cluster.task_address("ps", 1) == "b:1"
    assert cluster.task_address("worker", 3) == "d:1"
    assert cluster.job_tasks("ps") == ["a:1", "b:1"]
    assert cluster.job_tasks("worker") == ["c:1", None, None, "d:1"]
    assert cluster.job_tasks("my_job") == []
    assert cluster.tasks() == [Task("ps", 0), Task("ps", 1), Task("worker", 0), Task("worker", 3)]


def test_the_dict_is_a_list_without_gaps_else_a_map_and_empty_for_an_empty_job() -> None:
    cluster = ClusterSpec(
        {"dense": {1: "b:1", 0: "a:1"}, "sparse": {2: "c:1", 1: "b:1"}, "tuple": ("a:2",), "none": []}
    )
    assert cluster.as_dict() == {
        "dense": ["a:1", "b:1"],
        "sparse": {1: "b:1", 2: "c:1"},
        "tuple": ["a:2"],
        "none": {},
    }


def test_changing_what_was_given_or_taken_leaves_the_cluster_as_it_is() -> None:
    given_tasks = ["a:1"]
    cluster = ClusterSpec({"ps": given_tasks})
    given_tasks.append("b:1")
    taken = cluster.as_dict()["ps"]
    assert isinstance(taken, list)
    taken.append("c:1")
    assert cluster.job_tasks("ps") == ["a:1"]


def test_string_indices_become_ints() -> None:
    assert ClusterSpec({"worker": {"0": "a:1", "7": "b:1"}}).task_indices("worker") == [0, 7]


def test_a_list_and_the_same_index_map_are_equal_and_hash_alike() -> None:
    as_list, as_map = ClusterSpec({"ps": ["a:1", "b:1"]}), ClusterSpec({"ps": {1: "b:1", 0: "a:1"}})
    assert as_list == as_map
    assert hash(as_list) == hash(as_map)
    assert as_list != ClusterSpec({"ps": ["a:1", "c:1"]})
    assert as_list != {"ps": ["a:1", "b:1"]}


def test_job_order_does_not_matter_for_equality() -> None:
    one, other = ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]}), ClusterSpec({"worker": ["b:1"], "ps": ["a:1"]})
    assert one == other
    assert hash(one) == hash(other)


def test_only_a_cluster_without_jobs_is_false() -> None:
    assert not ClusterSpec({})
    assert ClusterSpec({}).as_dict() == {}
    assert ClusterSpec({"ps": []})


def test_a_cluster_is_made_from_a_cluster_and_shown_as_its_dict() -> None:
    cluster = ClusterSpec(ClusterSpec(MIXED))
    assert cluster == ClusterSpec(MIXED)
    assert repr(cluster) == "ClusterSpec({'ps': ['a:1', 'b:1'], 'worker': {0: 'c:1', 3: 'd:1'}, 'my_job': {}})"


def test_an_unknown_job_or_index_names_the_known_ones() -> None:
    cluster = ClusterSpec(MIXED)
    for ask in (cluster.num_tasks, cluster.task_indices, cluster.job_tasks, lambda job: cluster.task_address(job, 0)):
        with pytest.raises(ValueError, match=r"got 'wroker'.*ps, worker, my_job"):
            ask("wroker")
    with pytest.raises(ValueError, match=r"got worker 1, wanted an index of worker: 0, 3"):
        cluster.task_address("worker", 1)
    with pytest.raises(ValueError, match=r"\(none\)"):
        ClusterSpec({}).num_tasks("ps")


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "a:1",
        ["a:1"],
        {"ps": "a:1"},
        {"ps": None},
        {"ps": [1]},
        {"ps": [None]},
        {0: ["a:1"]},
        {"ps": {1.5: "a:1"}},
    ],
)
def test_wrong_types_are_a_type_error(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"got .*wanted"):
        ClusterSpec(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [-1, True, "one", "-1", ""])
def test_an_index_that_is_no_natural_number_is_refused(index: object) -> None:
    with pytest.raises(ValueError, match="wanted a whole number from 0"):
        ClusterSpec({"ps": {index: "a:1"}})


def test_one_index_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="got task 0 twice"):
        ClusterSpec({"ps": {0: "a:1", "0": "b:1"}})


def test_master_is_read_as_chief() -> None:
    cluster = ClusterSpec({"master": ["a:1"], "ps": ["b:1"]})
    assert cluster == ClusterSpec({"chief": ["a:1"], "ps": ["b:1"]})
    assert cluster.jobs == ["chief", "ps"]
    assert cluster.task_address("master", 0) == "a:1"
    with pytest.raises(ValueError, match="master is read as chief"):
        ClusterSpec({"master": ["a:1"], "chief": ["b:1"]})


def test_flags_of_the_reference_trainer_give_a_cluster() -> None:
    assert ClusterSpec.from_flags("a:1,b:1", "c:1, d:1", "e:1") == ClusterSpec(
        {"chief": ["e:1"], "ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]}
    )
    assert ClusterSpec.from_flags("", "c:1") == ClusterSpec({"worker": ["c:1"]})
    with pytest.raises(ConfigError, match="--worker_hosts: got 'a:1,,b:1'"):
        ClusterSpec.from_flags("", "a:1,,b:1")


def test_a_cluster_with_good_and_different_addresses_can_be_served() -> None:
    cluster = ClusterSpec({"ps": ["a:0", "a:0", "a:1"], "worker": ["a:2", "inproc://w", "ipc:///w"], "chief": ["b:1"]})
    assert cluster.check_servable() is None  # type: ignore[func-returns-value]


def test_two_tasks_on_one_address_cannot_be_served() -> None:
    with pytest.raises(ConfigError, match="got 'a:1' for both ps:0 and worker:2"):
        ClusterSpec({"ps": ["a:1"], "worker": {2: "a:1"}}).check_servable()
    with pytest.raises(ValueError, match="'inproc://x' for both"):
        ClusterSpec({"ps": ["inproc://x", "inproc://x"]}).check_servable()


def test_an_address_without_a_port_cannot_be_served_but_can_be_named() -> None:
    cluster = ClusterSpec({"ps": ["a:1", "localhost"]})
    assert cluster.task_address("ps", 1) == "localhost"
    with pytest.raises(ValueError, match="ps:1: address: got 'localhost', wanted HOST:PORT"):
        cluster.check_servable()


def test_two_chiefs_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="got 2 chief tasks, wanted at most one"):
        ClusterSpec({"chief": ["a:1", "b:1"]}).check_servable()


def test_a_task_is_written_job_and_index() -> None:
    assert str(Task("ps", 1)) == "ps:1"
    assert sorted([Task("worker", 0), Task("ps", 10), Task("ps", 2)])[0] == Task("ps", 2)


addresses = st.text("abc:0123456789", min_size=1)
clusters = st.dictionaries(
    st.text(min_size=1).filter(lambda name: name != "master"),
    st.lists(addresses, max_size=4) | st.dictionaries(st.integers(0, 9), addresses, max_size=4),
    max_size=4,
)


@given(clusters)
def test_a_cluster_survives_its_dict_and_json(jobs: dict[str, object]) -> None:
    cluster = ClusterSpec(jobs)
    assert ClusterSpec(cluster.as_dict()) == cluster
    assert ClusterSpec(json.loads(json.dumps(cluster.as_dict()))) == cluster


@given(clusters)
def test_every_task_is_where_job_tasks_says(jobs: dict[str, object]) -> None:
    cluster = ClusterSpec(jobs)
    for job in cluster.jobs:
        held = {index: address for index, address in enumerate(cluster.job_tasks(job)) if address is not None}
        assert list(held) == cluster.task_indices(job)
        assert len(held) == cluster.num_tasks(job)
        assert all(cluster.task_address(job, index) == address for index, address in held.items())
