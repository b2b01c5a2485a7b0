"""Each engine's resolver, with the variables that the engine sets according to its documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps.cluster import ClusterSpec, Task, resolve
from dps.errors import ConfigError

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_UNIVERSE_SIZE": "4",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "3",
    "ROLE_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.138.0.8\n10.138.0.9\n10.138.0.10",
    "SKYPILOT_NUM_NODES": "3",
    "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    "SKYPILOT_TASK_ID": "sky-2023-07-06-21-18-31-563597_myclus_1",
}
INDEXED_JOB = {
    "JOB_COMPLETION_INDEX": "2",
    "HOSTNAME": "example-job-2",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
}
JOBSET = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "network-jobset-worker-0-1"}
JOBS = {"ps": 1, "worker": 2}
PE_HOSTFILE = """\
n07.cluster 2 all.q@n07.cluster UNDEFINED
n12.cluster 1 all.q@n12.cluster <NULL>
n03.cluster 1 gpu.q@n03.cluster 0,0
"""
FOUR = ClusterSpec({"ps": ["n1:8888"], "worker": ["n1:8889", "n2:8888", "n2:8889"]})


def instance(name: str, ip: str, status: str = "RUNNING") -> dict[str, Any]:
    zone = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
    return {"name": name, "zone": zone, "status": status, "networkInterfaces": [{"name": "nic0", "networkIP": ip}]}


def managed(name: str, status: str = "RUNNING") -> dict[str, Any]:
    url = f"https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/instances/{name}"
    return {"currentAction": "NONE", "id": "6216", "instance": url, "instanceStatus": status}


# -- what each engine says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hosts", [["n1 slots=2", "n2 slots=2 max_slots=4"], ["n1:2", "n2:2"], ["n1", "n1", "n2", "n2"], ["n1 slots = 3 "]]
)
def test_mpi_takes_the_machine_files_of_open_mpi_mpich_and_pbs(hosts: list[str]) -> None:
    if len(hosts) == 1:
        environ = OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}
        assert resolve.mpi(environ, hosts=hosts)[0].job_tasks("worker") == ["n1:8889", "n1:8890"]
        return
    assert resolve.mpi(OPEN_MPI, hosts=hosts) == (FOUR, Task("worker", 1))


def test_mpi_reads_the_machine_file_that_the_batch_system_names(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("# by PBS\nn1\nn1\n\nn2\nn2\n")
    assert resolve.mpi(OPEN_MPI | {"PBS_NODEFILE": str(nodes)}) == (FOUR, Task("worker", 1))
    assert resolve.mpi(OPEN_MPI, hosts=nodes)[0] == FOUR


def test_mpi_on_one_machine_needs_no_machine_file() -> None:
    cluster, task = resolve.mpi(HYDRA)
    assert cluster == ClusterSpec({"ps": ["127.0.0.1:8888"], "worker": [f"127.0.0.1:{8889 + i}" for i in range(3)]})
    assert task == Task("worker", 0)


def test_sge_takes_the_slots_of_its_machine_file(tmp_path: Path) -> None:
    path = tmp_path / "pe_hostfile"
    path.write_text(PE_HOSTFILE)
    environ = {"PE_HOSTFILE": str(path), "NSLOTS": "4", "NHOSTS": "3", "PE": "mpi", "JOB_ID": "8319143"}
    cluster, task = resolve.sge(environ, {"ps": 2, "worker": 2}, 2222)
    assert cluster == ClusterSpec(
        {"ps": ["n07.cluster:2222", "n07.cluster:2223"], "worker": ["n12.cluster:2222", "n03.cluster:2222"]}
    )
    assert task is None
    assert resolve.sge(environ, rank=0)[1] == Task("ps", 0)
    assert resolve.sge(environ | OPEN_MPI)[1] == Task("worker", 1)  # mpirun in the job's script


def test_torchrun_on_one_host_and_on_two() -> None:
    assert resolve.torchrun(TORCHRUN, hosts=["n1", "n2"]) == (FOUR, Task("worker", 2))
    alone = TORCHRUN | {"WORLD_SIZE": "2", "RANK": "1", "GROUP_RANK": "0"}
    assert resolve.torchrun(alone) == (
        ClusterSpec({"ps": ["node0:8888"], "worker": ["node0:8889"]}),
        Task("worker", 0),
    )


def test_skypilot_has_a_task_on_each_node() -> None:
    cluster, task = resolve.skypilot(SKYPILOT)
    assert cluster == ClusterSpec({"ps": ["10.138.0.8:8888"], "worker": ["10.138.0.9:8888", "10.138.0.10:8888"]})
    assert task == Task("worker", 0)
    assert resolve.skypilot(SKYPILOT, "worker")[1] == Task("worker", 1)


def test_an_address_of_ipv6_gets_brackets() -> None:
    nodes = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "fd00::1\nfd00::2"}
    cluster, _ = resolve.skypilot(nodes)
    cluster.check_servable()
    assert cluster.job_tasks("ps") == ["[fd00::1]:8888"]


def test_an_indexed_job_is_reached_through_its_headless_service() -> None:
    cluster, task = resolve.kubernetes(INDEXED_JOB | {"DPS_SERVICE": "headless-svc"}, JOBS)
    assert cluster == ClusterSpec(
        {
            "ps": ["example-job-0.headless-svc:8888"],
            "worker": ["example-job-1.headless-svc:8888", "example-job-2.headless-svc:8888"],
        }
    )
    assert task == Task("worker", 1)
    assert resolve.kubernetes(INDEXED_JOB, JOBS)[0].task_address("ps", 0) == "example-job-0.example-job:8888"


def test_a_jobset_has_a_replicated_job_for_each_job() -> None:
    cluster, task = resolve.kubernetes(JOBSET, JOBS, service="example")
    assert cluster == ClusterSpec(
        {
            "ps": ["network-jobset-ps-0-0.example:8888"],
            "worker": ["network-jobset-worker-0-0.example:8888", "network-jobset-worker-0-1.example:8888"],
        }
    )
    assert task == Task("worker", 1)
    assert resolve.kubernetes(JOBSET, JOBS)[0].task_address("ps", 0) == "network-jobset-ps-0-0.network-jobset:8888"
    master = {"JOB_COMPLETION_INDEX": "0", "HOSTNAME": "run-master-0-0"}
    assert resolve.kubernetes(master, {"master": 1, "ps": 1})[1] == Task("chief", 0)


def test_gce_takes_running_instances_by_name() -> None:
    listing = [instance("g-2", "10.128.0.4"), instance("g-0", "10.128.0.7"), instance("g-1", "10.128.0.2", "STAGING")]
    cluster, task = resolve.gce(listing, environ={"HOSTNAME": "g-2.us-central1-a.c.p.internal"})
    assert cluster == ClusterSpec({"ps": ["10.128.0.7:8888"], "worker": ["10.128.0.4:8888"]})
    assert task == Task("worker", 0)
    assert resolve.gce(json.dumps({"kind": "compute#instanceList", "items": listing}), name="x") == (cluster, None)


def test_gce_takes_the_list_of_a_managed_group() -> None:
    listing = [managed("g-9x2l"), managed("g-0f3k"), managed("g-7777", "STOPPING")]
    cluster = ClusterSpec({"worker": ["g-0f3k:8888", "g-9x2l:8888"]})
    assert resolve.gce(listing, "worker", name="g-9x2l") == (cluster, Task("worker", 1))
    assert resolve.gce({"managedInstances": listing}, "worker", name="")[0] == cluster


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(0, 3),
    st.sampled_from(["{} slots={}", "{}:{}", "{} {} q@h U"]),
)
def test_every_rank_sees_one_cluster_and_is_another_task_of_it(slots: list[int], ps: int, form: str) -> None:
    total, lines = sum(slots), [form.format(f"n{i}", count) for i, count in enumerate(slots)]
    jobs = {"ps": min(ps, total), "worker": total - min(ps, total)}
    found = [resolve.mpi({"PMI_RANK": str(rank), "PMI_SIZE": str(total)}, jobs, hosts=lines) for rank in range(total)]
    assert all(cluster == found[0][0] for cluster, _ in found)
    assert sorted(str(task) for _, task in found) == sorted(map(str, found[0][0].tasks()))
    found[0][0].check_servable()


# -- by name, and together --------------------------------------------------------------------------------------------


def test_an_engine_is_found_by_name() -> None:
    assert resolve.run_resolver("skypilot", SKYPILOT) == resolve.skypilot(SKYPILOT)
    with pytest.raises(ConfigError, match="resolver: got 'lsf', wanted one of kubernetes, mpi, sge, skypilot, slurm"):
        resolve.run_resolver("lsf", {})


def test_a_union_has_the_tasks_of_all() -> None:
    ps = resolve.gce([instance("ps-0", "10.0.0.1")], "ps", name="w-1")
    workers = resolve.gce([instance("w-0", "10.0.0.2"), instance("w-1", "10.0.0.3")], "worker", name="w-1")
    both = ClusterSpec({"ps": ["10.0.0.1:8888"], "worker": ["10.0.0.2:8888", "10.0.0.3:8888"]})
    assert resolve.union(ps=ps, workers=workers) == (both, Task("worker", 1))
    assert resolve.union(ps=ps, workers=workers, again=(both, None)) == (both, Task("worker", 1))
    assert resolve.union() == (ClusterSpec({}), None)
    one, other = ClusterSpec({"worker": ["h0:1"]}), ClusterSpec({"worker": {4: "h4:1"}})
    assert resolve.union(a=(one, None), b=(other, None))[0] == ClusterSpec({"worker": {0: "h0:1", 4: "h4:1"}})


def test_a_union_of_two_that_disagree_says_which_said_what() -> None:
    a = ClusterSpec({"ps": ["a:1"]}), Task("ps", 0)
    with pytest.raises(ConfigError, match="union: got ps:0 at a:1 from tf_config and at b:1 from sge, wanted one addr"):
        resolve.union(tf_config=a, sge=(ClusterSpec({"ps": ["b:1"]}), None))
    with pytest.raises(ConfigError, match="this process is ps:0 for tf_config and worker:0 for sge, wanted one task"):
        resolve.union(tf_config=a, sge=(ClusterSpec({"worker": ["b:1"]}), Task("worker", 0)))


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "environ", "words"),
    [
        ("mpi", {}, "MPI: got no rank, wanted one of the variables OMPI_COMM_WORLD_RANK.*; start the program with mpi"),
        ("mpi", {"PMI_RANK": "0"}, "MPI: got no PMI_SIZE, wanted .*; start the program with mpirun"),
        ("mpi", HYDRA | {"PMI_RANK": "one"}, "MPI: got PMI_RANK='one', wanted a whole number from 0; start"),
        ("mpi", HYDRA | {"PMI_RANK": "4"}, "MPI: got PMI_RANK='4', wanted less than PMI_SIZE=4"),
        ("mpi", HYDRA | {"PMI_SIZE": "0"}, "MPI: got PMI_SIZE='0', wanted 1 to 1,000,000"),
        ("mpi", HYDRA | {"PMI_SIZE": "99999999999"}, "wanted 1 to 1,000,000"),
        ("mpi", HYDRA | {"MPI_LOCALNRANKS": "2"}, "MPI: got 4 ranks and no hosts, wanted the machine file.*hosts=FILE"),
        ("mpi", HYDRA | {"MPI_LOCALRANKID": "0"}, "MPI_LOCALRANKID='0', wanted 1 for rank 1: .*; use mpirun --map-by"),
        ("mpi", HYDRA | {"PE_HOSTFILE": "/nowhere/pe"}, "MPI: machine file '/nowhere/pe': got .*No such file"),
        ("sge", {}, "SGE: got no PE_HOSTFILE, wanted .*; submit the job to a parallel environment: qsub -pe"),
        ("sge", {"PE_HOSTFILE": " "}, "SGE: got an empty PE_HOSTFILE"),
        ("sge", {"PE_HOSTFILE": "/nowhere/pe"}, "SGE: machine file '/nowhere/pe': got .*, wanted a file with lines"),
        ("sge", {"PE_HOSTFILE": "/dev/zero"}, "SGE: machine file '/dev/zero': got .* more than 67,108,864 bytes"),
        ("torchrun", {}, "torchrun: got no WORLD_SIZE, .*; start the program with torchrun"),
        ("torchrun", TORCHRUN, r"got 1 hosts \(node0\), wanted 2 \(WORLD_SIZE=4, LOCAL_WORLD_SIZE=2\); give hosts="),
        ("torchrun", TORCHRUN | {"RANK": "2"}, "RANK='2', wanted 3 from GROUP_RANK.*--nproc-per-node"),
        ("torchrun", TORCHRUN | {"LOCAL_RANK": "-1"}, "LOCAL_RANK='-1', wanted a whole number"),
        ("torchrun", TORCHRUN | {"WORLD_SIZE": "5"}, "with as many processes on each host"),
        ("skypilot", {}, "SkyPilot: got no SKYPILOT_NODE_IPS, .*; run the program in the run section"),
        ("skypilot", SKYPILOT | {"SKYPILOT_NODE_IPS": "\n"}, "got an empty SKYPILOT_NODE_IPS"),
        ("skypilot", SKYPILOT | {"SKYPILOT_NODE_RANK": "3"}, "SKYPILOT_NODE_RANK='3', wanted less than"),
        ("skypilot", SKYPILOT | {"SKYPILOT_NUM_NODES": "2"}, "SKYPILOT_NUM_NODES='2', wanted 3, the number of addr"),
        ("skypilot", SKYPILOT | {"SKYPILOT_NODE_IPS": "a\na"}, "wanted one address a line, each once"),
        ("kubernetes", {}, "Kubernetes: got no JOB_COMPLETION_INDEX, .*; run the program in a pod of a Job with"),
        ("kubernetes", {"JOB_COMPLETION_INDEX": "0"}, "Kubernetes: got no HOSTNAME"),
        ("kubernetes", INDEXED_JOB | {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX='x', wanted a whole number"),
        ("kubernetes", INDEXED_JOB | {"HOSTNAME": "pod"}, "HOSTNAME='pod', wanted a name that ends in -2"),
        ("kubernetes", {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "j-3"}, "less than the 3 tasks of jobs; set compl"),
        ("kubernetes", JOBSET | {"HOSTNAME": "s-worker-1-1"}, "wanted a pod of replica 0; give each repl.*replicas: 1"),
        ("kubernetes", {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "s-worker-0-2"}, "less than the 2 tasks of jobs"),
    ],
)  # fmt: skip
def test_a_variable_that_is_missing_or_malformed_is_named(engine: str, environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        resolve.run_resolver(engine, environ, JOBS)
    assert "\n" not in str(caught.value)


def test_kubernetes_must_be_told_how_many_tasks_there_are() -> None:
    for jobs in (None, {}, "worker"):
        with pytest.raises(ConfigError, match="Kubernetes: got jobs .*, wanted the number of tasks of each job"):
            resolve.kubernetes(INDEXED_JOB, jobs)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "MPI: hosts: got 0 slots, wanted 1 to 1,000,000"),
        (["n1 slots=0"], "MPI: hosts: got 0 slots"),
        (["n1", "n2 four all.q"], "MPI: hosts: line 2: got 'n2 four all.q', wanted lines such as"),
        (["n1:x"], "line 1: got 'n1:x'"),
        (["n1 slots=3"], "PMI_SIZE='4', wanted at most the 3 slots of the hosts; give the machine file"),
        (["n1 slots=999999999"], "wanted 1 to 1,000,000"),
    ],
)
def test_a_machine_file_that_cannot_be_used_is_refused(lines: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve.mpi(HYDRA, hosts=lines)


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        ("{", "GCE: got the listing '{', wanted the JSON of `gcloud"),
        ("3", "GCE: got the listing '3'"),
        ({"kind": "x"}, "GCE: got the listing"),
        ([3], "GCE: got the instance 3, wanted one with `name` or `instance`"),
        ([{"status": "RUNNING"}], "wanted one with `name`"),
        ([], "GCE: got no instance with the status RUNNING"),
        ([managed("a", "STOPPED")], "no instance with the status RUNNING"),
        ([managed("a"), managed("a")], "got the instance 'a' twice"),
    ],
)
def test_a_listing_that_cannot_be_used_is_refused(listing: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve.gce(listing)


@given(st.dictionaries(st.sampled_from([*OPEN_MPI, *HYDRA, *TORCHRUN, *SKYPILOT, *JOBSET]), st.text(max_size=6)))
def test_no_environment_makes_anything_but_a_cluster_or_one_clear_error(environ: dict[str, str]) -> None:
    for engine in resolve.RESOLVERS:
        try:
            resolve.run_resolver(engine, environ, JOBS)
        except ConfigError as error:
            assert "got" in str(error) and "wanted" in str(error)
