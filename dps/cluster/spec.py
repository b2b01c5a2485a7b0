"""`ClusterSpec`: the tasks of a cluster and their addresses. `Task`: the name of one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dps.cluster.address import parse
from dps.errors import ConfigError
from dps.process import config
from dps.process.record import record
from dps.process.telemetry import log

Tasks = list[str] | dict[int, str]
FOLLOWING = ("ps", "evaluator", "dataset")
"""The jobs whose tasks need another one that leads the run."""


@record
class Task:
    """One task of a cluster; `str()` gives "ps:1".

    Args:
        job: The job's name.
        index: The index within the job.

    Example:
        ```pycon
        >>> cluster = dps.ClusterSpec({"ps": ["a:2222"], "worker": ["b:2230", "c:2230"]})
        >>> task = cluster.tasks()[2]
        >>> str(task), task.job, task.index
        ('worker:1', 'worker', 1)
        ```
    """

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    def __lt__(self, other: Task) -> bool:
        return (self.job, self.index) < (other.job, other.index)


class ClusterSpec:
    """The addresses of all tasks, by job. Immutable and hashable; false when it has no job.

    A list and an index map of the same addresses are equal. The job `master` is read as `chief`, here and in every
    lookup. Addresses are only checked by `check_servable`.

    Args:
        cluster: For each job a list of addresses "HOST:PORT", or a map from indices to addresses. Indices written as
            digits become ints.

    Raises:
        TypeError: Neither lists nor maps.
        ValueError: An index that is not a whole number from 0 or occurs twice; a cluster with both `master` and
        `chief`.

    Example:
        ```pycon
        >>> cluster = dps.ClusterSpec({"ps": ["a:2222"], "worker": {0: "b:2230", 3: "c:2233"}})
        >>> cluster.jobs, cluster.num_tasks("worker"), cluster.task_indices("worker")
        (['ps', 'worker'], 2, [0, 3])
        >>> cluster.task_address("worker", 3)
        'c:2233'
        >>> cluster.job_tasks("worker")
        ['b:2230', None, None, 'c:2233']
        ```
    """

    __slots__ = ("_jobs",)

    def __init__(self, cluster: ClusterSpec | Mapping[str, object]) -> None:
        self._jobs: dict[str, dict[int, str]] = {}
        if isinstance(cluster, ClusterSpec):
            self._jobs.update(cluster._jobs)
            return
        if not isinstance(cluster, Mapping):
            raise TypeError(
                f"cluster: got {type(cluster).__name__} {cluster!r}, wanted a dict from job names to addresses, "
                'such as {"ps": ["127.0.0.1:2222"]}'
            )
        for name, tasks in cluster.items():
            if not isinstance(name, str):
                raise TypeError(f"job name: got {name!r}, wanted a string")
            if job_name(name) in self._jobs:
                raise ConfigError("cluster: got the jobs 'master' and 'chief', wanted one; master is read as chief")
            self._jobs[job_name(name)] = _indexed(name, tasks)

    @classmethod
    def from_flags(cls, ps_hosts: str, worker_hosts: str, chief_hosts: str = "") -> ClusterSpec:
        """The cluster of the reference trainer's flags: addresses with commas between; "" for no such job.

        Args:
            ps_hosts: The ps, such as "a:2222,b:2222".
            worker_hosts: The workers.
            chief_hosts: The chief.

        Returns:
            The cluster.

        Raises:
            ConfigError: An empty entry, as in "a:1,,b:1".
        """
        flags = {"chief": chief_hosts, "ps": ps_hosts, "worker": worker_hosts}
        jobs: dict[str, list[str]] = {}
        for job, hosts in flags.items():
            if not hosts.strip():
                continue
            jobs[job] = [address.strip() for address in hosts.split(",")]
            if "" in jobs[job]:
                raise ConfigError(f"--{job}_hosts: got {hosts!r} with an empty entry, wanted HOST:PORT,HOST:PORT")
        return cls(jobs)

    @property
    def jobs(self) -> list[str]:
        """The job names, in the order given."""
        return list(self._jobs)

    def num_tasks(self, job: str) -> int:
        """How many tasks a job has; gaps do not count.

        Args:
            job: The job's name.

        Returns:
            The number of its tasks.

        Raises:
            ValueError: An unknown job.
        """
        return len(self._job(job))

    def task_indices(self, job: str) -> list[int]:
        """The task indices of a job.

        Args:
            job: The job's name.

        Returns:
            The indices, ascending.

        Raises:
            ValueError: An unknown job.
        """
        return list(self._job(job))

    def task_address(self, job: str, index: int) -> str:
        """The address of one task.

        Args:
            job: The job's name.
            index: The task's index.

        Returns:
            "HOST:PORT".

        Raises:
            ValueError: An unknown job or index.
        """
        tasks = self._job(job)
        if index not in tasks:
            raise ConfigError(f"task: got {job} {index!r}, wanted an index of {job}: {_listed(tasks)}")
        return tasks[index]

    def job_tasks(self, job: str) -> list[str | None]:
        """The addresses of a job by index.

        Args:
            job: The job's name.

        Returns:
            The addresses, with None in the gaps.

        Raises:
            ValueError: An unknown job.
        """
        tasks = self._job(job)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, Tasks]:
        """The cluster as a new dict.

        Returns:
            A list for a job without gaps, else its index map; {} for an empty job.
        """
        return {name: _plain(tasks) for name, tasks in self._jobs.items()}

    def tasks(self) -> list[Task]:
        """Every task.

        Returns:
            The tasks, jobs in the order given, indices ascending.
        """
        return [Task(name, index) for name, tasks in self._jobs.items() for index in tasks]

    def chief_task(self) -> Task | None:
        """The task that hosts the chief.

        Returns:
            The chief job's task, else the first worker, else the first task of a lone job of another name (but ps,
                evaluator or dataset, whose tasks cannot lead); None where there is none of these.
        """
        others = [job for job in self._jobs if job not in FOLLOWING]
        lone = others if len(self._jobs) == 1 else []
        job = next((job for job in ("chief", "worker", *lone) if self._jobs.get(job)), None)
        return None if job is None else Task(job, next(iter(self._jobs[job])))

    def check_servable(self) -> None:
        """Refuse a cluster that cannot be served. A server calls this when it is made.

        Raises:
            ConfigError: An address without a good port, two tasks on one address (port 0, "choose one", excepted), or
                more than one chief (also a ValueError).
        """
        holder: dict[str, Task] = {}
        for task in self.tasks():
            address = self.task_address(task.job, task.index)
            try:
                parsed = parse(address)
            except ConfigError as error:
                raise ConfigError(f"{task}: {error}") from None
            if parsed.scheme == "tcp" and parsed.port == 0:  # the server chooses it
                continue
            other = holder.setdefault(address, task)
            if other is not task:
                raise ConfigError(
                    f"cluster: got {address!r} for both {other} and {task}, wanted one address for each task; "
                    "change a port (port 0 chooses a free one)"
                )
        chiefs = len(self._jobs.get("chief", ()))
        if chiefs > 1:
            raise ConfigError(f"cluster: got {chiefs} chief tasks, wanted at most one; make the others workers")

    def _job(self, job: str) -> dict[int, str]:
        tasks = self._jobs.get(job_name(job))
        if tasks is None:
            raise ConfigError(f"job: got {job!r}, wanted one of this cluster's jobs: {_listed(self._jobs)}")
        return tasks

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset((name, tuple(tasks.items())) for name, tasks in self._jobs.items()))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def job_name(name: str) -> str:
    """The name under which a job is kept: `chief` for `master`, else the name itself."""
    return "chief" if name == "master" else name


def _indexed(job: str, tasks: object) -> dict[int, str]:
    """The tasks of one job by index, ascending."""
    if isinstance(tasks, list | tuple):
        pairs: list[tuple[object, object]] = list(enumerate(tasks))
    elif isinstance(tasks, Mapping):
        pairs = list(tasks.items())
    else:
        raise TypeError(
            f"job {job!r}: got {type(tasks).__name__} {tasks!r}, wanted a list of addresses or a dict "
            "from task indices to addresses"
        )
    found: dict[int, str] = {}
    for key, address in pairs:
        index = _index(job, key)
        if index in found:
            raise ConfigError(f"job {job!r}: got task {index} twice, wanted each index once")
        if not isinstance(address, str):
            raise TypeError(f"{job}:{index}: got {address!r} as its address, wanted a string such as '127.0.0.1:2222'")
        found[index] = address
    return dict(sorted(found.items()))


def _index(job: str, key: object) -> int:
    if isinstance(key, str) and key.isascii() and key.isdigit():
        return int(key)
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return key
    error = ValueError if isinstance(key, int | str) else TypeError
    raise error(f"job {job!r}: got {key!r} as a task index, wanted a whole number from 0")


def _plain(tasks: dict[int, str]) -> Tasks:
    dense = tasks and max(tasks) + 1 == len(tasks)
    return list(tasks.values()) if dense else dict(tasks)


def _listed(known: Mapping[str, object] | Mapping[int, object]) -> str:
    return ", ".join(map(str, known)) or "(none)"


def union(**found: tuple[ClusterSpec, Task | None]) -> tuple[ClusterSpec, Task | None]:
    """The cluster that several resolvers describe together, and this process's task in it.

    Each argument is what a resolver returned, under a name for messages. The clusters may overlap, if they agree.

    Args:
        **found: Clusters and tasks, such as `sge=dps.cluster.resolve.sge()`.

    Returns:
        The cluster, and the one task that is named; None if none is.

    Raises:
        ConfigError: Two resolvers have different addresses for one task, or different tasks for this process. The
            message says which said what.

    Example:
        ```pycon
        >>> ps = dps.ClusterSpec({"ps": ["a:2222"]}), None
        >>> environ = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\\n10.0.0.5"}
        >>> nodes = dps.cluster.resolve.skypilot(environ, "worker")
        >>> cluster, task = dps.cluster.resolve.union(fixed=ps, skypilot=nodes)
        >>> cluster.as_dict(), str(task)
        ({'ps': ['a:2222'], 'worker': ['10.0.0.4:8888', '10.0.0.5:8888']}, 'worker:1')
        ```
    """
    said: dict[Task, tuple[str, str]] = {}
    jobs: dict[str, dict[int, str]] = {}
    own: tuple[str, Task] | None = None
    for name, (cluster, task) in found.items():
        for job in cluster.jobs:
            jobs.setdefault(job, {})
        for one in cluster.tasks():
            address = cluster.task_address(one.job, one.index)
            other, before = said.setdefault(one, (name, address))
            if before != address:
                raise ConfigError(
                    f"union: got {one} at {before} from {other} and at {address} from {name}, wanted one address; give "
                    "one of them another job or other indices"
                )
            jobs[one.job][one.index] = address
        if task is not None and own is not None and own[1] != task:
            raise ConfigError(
                f"union: this process is {own[1]} for {own[0]} and {task} for {name}, wanted one task; leave the task "
                "of one of them out"
            )
        own = (name, task) if own is None and task is not None else own
    return ClusterSpec(jobs), None if own is None else own[1]


JOBS = ("chief", "ps", "worker", "evaluator", "dataset")
"""The jobs whose tasks dps has work for."""


def unknown(cluster: ClusterSpec) -> list[str]:
    """A line for each job that dps has no work for. A lone job of a name of its own is none: its first task leads."""
    lines = []
    for job in cluster.jobs:
        if job not in JOBS and cluster.num_tasks(job):
            hint = _meant(job)
            if len(cluster.jobs) == 1 and not hint:
                continue
            hint = hint or f"; the jobs of dps are {', '.join(JOBS)}"
            lines.append(f"cluster: dps does not use the job {job!r} ({tasks(cluster, job)}){hint}")
    return lines


def check_job(job: str, cluster: ClusterSpec) -> None:
    """Raise ConfigError for the job of a task that dps has no work for. A lone job of a name of its own is none, nor is
    "client", of sessions that belong to no task."""
    if job not in (*JOBS, "client") and cluster.jobs != [job]:
        raise ConfigError(f"got the job {job!r:.40}, wanted one of {', '.join(JOBS)}{_meant(job)}")


def _meant(job: str) -> str:
    """For messages: the job of dps whose name is nearly this one; "" if there is none."""
    import difflib

    close = difflib.get_close_matches(job, JOBS, 1, 0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def unfit(cluster: ClusterSpec, who: str, needs: Sequence[str], leaves: Sequence[str]) -> list[str]:
    """A line for each job that a strategy needs and a cluster lacks, and for each that the strategy leaves idle. None
    for an empty cluster: its tasks join by the chief's address, and nobody knows them yet."""
    if not cluster:
        return []
    has = ", ".join(f"{job} ({tasks(cluster, job)})" for job in cluster.jobs)
    lacking = [
        f"{who} needs a {job}, and the cluster has none: {has}; add one, or take another strategy"
        for job in needs
        if job not in cluster.jobs or not cluster.num_tasks(job)
    ]
    idle = [
        f"{who} does not use the job {job!r} of the cluster ({tasks(cluster, job)}); leave it out"
        for job in leaves
        if job in cluster.jobs and cluster.num_tasks(job)
    ]
    return lacking + idle


def tasks(cluster: ClusterSpec, job: str) -> str:
    """How many tasks a job has, for messages."""
    count = cluster.num_tasks(job)
    return "1 task" if count == 1 else f"{count} tasks"


def warn(lines: Sequence[str]) -> None:
    """Log lines as warnings."""
    for line in lines:
        log.warning("%s", line)


def start_command(job: str, task: int | None, where: str) -> str:
    """`task` None: any task. `where`: the flags for the cluster, "--chief HOST:PORT" or "--cluster CLUSTER"."""
    index = "" if task is None or job == "chief" else f" --task {task}"
    program = " --program PROGRAM" if job == "worker" else ""
    return f"python -m dps.role --job {job}{index} {where}{program}"


def where_flags(cluster: ClusterSpec, chief: str, network: str = "") -> str:
    """The flags by which other tasks find the cluster, or its chief; "" if people do not start them. `network`: more
    flags that they need, --keys or --trusted-network."""
    if config.launched.is_set() or chief.startswith("inproc://"):
        return ""
    return ("--cluster CLUSTER" if cluster else f"--chief {chief}") + (network and f" {network}")


def chief_command(cluster: ClusterSpec, chief: str, network: str = "") -> str:
    """The command that starts the chief, or the worker that hosts it; "" as of `where_flags`."""
    where, lead = where_flags(cluster, chief, network), cluster.chief_task() if cluster else None
    return where and start_command(lead.job if lead else "chief", lead.index if lead else None, where)
