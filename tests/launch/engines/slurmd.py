"""A Slurm for tests: a controller and two nodes on this machine, in a network namespace of their own, as root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.needs import need
from tests.launch.engines.processes import inheriting

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
TOOLS = ("slurmctld", "slurmd", "srun", "salloc", "sbatch", "munged", "ip")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
DefMemPerCPU=100
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=5
OverTimeLimit=0
NodeName=n1 NodeAddr=127.0.0.1 NodeHostname={host} Port=17001 CPUs=8 RealMemory=4000
NodeName=n2 NodeAddr=127.0.0.2 NodeHostname={host} Port=17002 CPUs=8 RealMemory=4000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Starts it, and ends it. `run` runs a command where its tools reach it."""

    def __init__(self) -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
        wanted = "root, and Slurm (Debian: slurmctld slurmd slurm-client munge iproute2)"
        need(wanted if missing or os.geteuid() else "")
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self._name = f"dps-slurm-{os.getpid()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.environ = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATH}
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        ip = shutil.which("ip", path=PATH)
        for words in ("netns add NAME", "-n NAME link set lo up", "-n NAME address add 127.0.0.2/8 dev lo"):
            subprocess.run([str(ip), *words.replace("NAME", self._name).split()], check=True, capture_output=True)
        for part in ("state", "spool.n1", "spool.n2"):
            (self.folder / part).mkdir()
        (self.folder / "slurm.conf").write_text(CONFIG.format(folder=self.folder, host=os.uname().nodename))
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)
        munge = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        flags = [f"--{flag}={self.folder}/munge.{end}" for flag, end in munge.items()]
        self._start("munged", "--foreground", "--force", *flags)
        until((self.folder / "munge.socket").exists)
        self._start("slurmctld", "-D", "-i")
        self._begin_nodes("n1", "n2")

    def _begin_nodes(self, *nodes: str) -> None:
        for node in nodes:
            self._nodes[node] = self._start("slurmd", "-D", "-N", node)
        until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == "2", 30.0)

    def _start(self, tool: str, *flags: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **self.environ}
        with (self.folder / f"{tool}.out").open("ab") as log:
            started = subprocess.Popen([*self.enter, tool, *flags], env=environ, stdout=log, stderr=log)
        self._processes.append(started)
        return started

    @property
    def enter(self) -> list[str]:
        """What a command line begins with that runs there."""
        return ["nsenter", f"--net=/run/netns/{self._name}"]  # ip netns exec would hide the control groups

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(
            [*self.enter, *command], env=environ, capture_output=True, text=True, timeout=60, check=False
        )

    def jobs(self) -> str:
        """The jobs that Slurm has, one a line."""
        return self.run("squeue", "-h").stdout.strip()

    def vanish(self, node: str) -> None:
        """A node is gone at once, with all that runs there."""
        self._nodes[node].kill()
        for pid in inheriting(f"SLURMD_NODENAME={node}", f"SLURM_CONF={self.folder}/slurm.conf"):
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
                if b"slurmstepd" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    os.kill(parent, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
        self._nodes.pop(node).wait()

    def replace(self, node: str) -> None:
        """Have a node of this name that is as new."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        self.run("scontrol", "update", f"nodename={node}", "state=resume")
        self._begin_nodes(node)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
        subprocess.run([str(shutil.which("ip", path=PATH)), "netns", "delete", self._name], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
