"""Users of the engines, each with a terminal, a folder with an experiment, and a machine that can go."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.chaos.cluster import ROOT
from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.processes import running
from tests.launch.engines.programs import write
from tests.launch.engines.raylets import PYTHON, Ray
from tests.launch.engines.slurmd import Slurm
from tests.launch.engines.sshd import Hosts
from tests.launch.runs.test_runs_of_processes import Terminal

LONG = ("--set", "steps=100000", "--set", "pause=0.01")


class User(Terminal):
    """A user of one engine. `cluster`: what makes its cluster of two ps and two workers in Python."""

    on, more, cluster = "local", "", "dps.LocalCluster(ps=2, workers=2)"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environ["PYTHONPATH"] = str(ROOT)
        write(folder, self.more)

    def launch(self, *more: str, code: int = 0) -> str:
        """What `dps launch` on this engine prints."""
        return self.dps("launch", "--on", self.on, "experiment.yaml", *more, code=code)

    def refusal(self, code: int = 2) -> str:
        """The one line that says why nothing begins, beside one that says what is waited for."""
        lines = [line for line in self.launch(code=code).splitlines() if not line.startswith("[dps] waits for ")]
        assert len(lines) == 1 and lines[0].startswith("dps: "), lines
        return lines[0]

    def begin(self, *more: str, run: str = "1") -> None:
        """Launch in the background, and wait until both workers train."""
        self.launch("--detach", *(more or LONG))
        until(lambda: self.dps("logs", run).count("begins at") >= 2)

    def wait_for_checkpoints(self, count: int, run: str = "1") -> None:
        until(lambda: self.dps("logs", run, "--task", "chief").count("saved") >= count)

    def places(self) -> list[Path]:
        """The folders where tasks and launcher write, beside the run's own."""
        return [self.folder / "temporary"]

    def gives_notice(self) -> str:
        """A machine without the chief is about to go; returns its name."""
        raise NotImplementedError

    def vanishes(self) -> str:
        """A machine without the chief is gone at once; returns its name."""
        raise NotImplementedError

    def left(self) -> str:
        """What is left, for people."""
        living, files = self.living(), [str(file) for folder in self.places() for file in folder.rglob("*")]
        return f"processes {living}, files {files}" if living or files else ""

    def close(self) -> None:
        """Nothing is left."""
        try:
            until(lambda: not self.left(), 15.0)
        except AssertionError:
            raise AssertionError(f"left: {self.left()}") from None
        finally:
            for pid in self.living():
                os.kill(pid, signal.SIGKILL)


class SSHUser(User):
    """The chief is on the host "one", a ps and a worker on "two"."""

    on, more, cluster = "ssh", "hosts: [one, two]\n", 'dps.launch.SSHCluster(["one", "two"], ps=2, workers=2)'

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.hosts = Hosts(folder / "ssh", self.mark, "one", "two")
        self.environ["PATH"] = f"{self.hosts.bin}:{os.environ['PATH']}"

    def places(self) -> list[Path]:
        return [*super().places(), self.hosts.temporary / "one", self.hosts.temporary / "two"]

    def gives_notice(self) -> str:
        os.kill(self.hosts.host_process("two"), signal.SIGTERM)
        return "two"

    def vanishes(self) -> str:
        self.hosts.vanish("two")
        return "two"

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.hosts.close()


class SlurmUser(User):
    """Each task has two processors: four tasks are on n1, the chief among them, and one ps on n2."""

    on, more, cluster = "slurm", "resources: {cpus: 2}\n", "dps.launch.SlurmCluster(ps=2, workers=2)"

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        super().__init__(folder)
        self.slurm, self.enter = slurm, slurm.enter
        self.environ |= {**slurm.environ, "SALLOC_TIMELIMIT": "5"}
        self.environ["PATH"] = f"{Path(sys.executable).parent}:{slurm.environ['PATH']}"
        self._gone = ""

    def gives_notice(self) -> str:
        """The whole job is, as Slurm's --signal says before its end."""
        job = self.slurm.run("squeue", "-h", "-o", "%A").stdout.split()[0]
        self.slurm.run("scancel", "--signal=URG", job)
        return "n1"

    def vanishes(self) -> str:
        self._gone = "n2"
        self.slurm.vanish("n2")
        return "n2"

    def left(self) -> str:
        return super().left() or self.slurm.jobs()

    def close(self) -> None:
        if self._gone:
            self.slurm.replace(self._gone)
        super().close()


class RayUser(User):
    """Where a task is Ray decides."""

    on, more, cluster = "ray", "resources: {cpus: 1}\n", "dps.launch.RayCluster(ps=2, workers=2)"

    def __init__(self, folder: Path, ray: Ray) -> None:
        super().__init__(folder)
        self.ray, self.python = ray, PYTHON
        self.environ |= ray.environ
        self._gone = ""

    def places(self) -> list[Path]:
        return [*super().places(), *self.ray.temporary.iterdir()]

    def _one_without_the_chief(self) -> str:
        hosts = {name: str(task["host"]) for name, task in self.view().tasks.items()}
        self._gone = next(host for host in hosts.values() if host not in (hosts["chief"], "head"))
        return self._gone

    def gives_notice(self) -> str:
        name = self._one_without_the_chief()
        self.ray.drain(name)
        return name

    def vanishes(self) -> str:
        name = self._one_without_the_chief()
        self.ray.vanish(name)
        return name

    def living(self) -> list[int]:
        """Those of the nodes are the actors and their tasks."""
        return super().living() + self.ray.tasks()

    def lose_actor(self, task: str) -> None:
        """Kill the actor of a task, as a node that lacks memory does."""
        job, _, number = task.partition(":")
        pid = running(f"--job {job} --task {number}", self.ray.tasks())
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        os.kill(parent, signal.SIGKILL)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self._gone:
                self.ray.replace(self._gone)
