"""`ClusterSpec`: the tasks of a cluster and their addresses. `Task`: the name of one task."""

from __future__ import annotations

from collections.abc import Mapping

from dps.cluster.address import parse
from dps.errors import ConfigError
from dps.record import record

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
