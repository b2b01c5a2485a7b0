"""A Ray for tests: a head and more nodes on this machine, and the Python that has Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.cluster import ROOT
from tests.launch.clusters.test_local_processes import until
from tests.launch.engines.needs import need
from tests.launch.engines.processes import everything, inheriting, lives

PYTHON = os.environ.get("DPS_RAY_PYTHON") or sys.executable
"""Ray is large, so it may be in an environment of its own, with dps (`make engines` makes one)."""
MARK = "TEST_RAY_NODE"
UP_S, TRIES = 100.0, 3


def own_address() -> str:
    """The address of this machine that Ray finds by itself: a driver must name the head by it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        try:
            tried.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(tried.getsockname()[0])


def need_ray() -> None:
    """Skip or fail the test where there is no Ray."""
    there = sys.executable != PYTHON or importlib.util.find_spec("ray") is not None
    need("" if there else "Ray in the environment of DPS_RAY_PYTHON (pip install ray)")


class Ray:
    """Starts it, and ends it. Nodes have names, and the processes of a node have its name in their environment."""

    def __init__(self, *names: str) -> None:
        need_ray()
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        self.address = f"{own_address()}:{port}"
        self.environ = {
            "PYTHONPATH": str(ROOT), "RAY_ADDRESS": self.address, "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        }  # fmt: skip
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.temporary = self.folder / "t"
        self.temporary.mkdir()
        try:
            self._start("head", "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.folder}")
            until(lambda: self._is_up("head") or self._nodes["head"].poll() is not None, UP_S)
            assert self._is_up("head"), self._log("head").read_text()
            self.add(*names)
        except BaseException:
            self.close()
            raise

    def add(self, *names: str, labels: str = "") -> None:
        """Start more nodes, one after the other. One that does not come up in Ray's own 30 s is started again."""
        for name in names:
            for _ in range(TRIES):
                self._start(name, f"--address={self.address}", *([f"--labels={labels}"] if labels else []))
                until(lambda name=name: self._is_up(name) or self._nodes[name].poll() is not None, UP_S)  # type: ignore[misc]
                if self._is_up(name):
                    break
            assert self._is_up(name), self._log(name).read_text()

    def _start(self, name: str, *flags: str) -> None:
        command = [PYTHON, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=4", f"--node-name={name}"]
        command += [*flags, "--object-store-memory=80000000", "--disable-usage-stats"]
        environ = {variable: value for variable, value in os.environ.items() if variable != "PYTEST_CURRENT_TEST"}
        environ |= self.environ | {MARK: f"{self.folder.name}.{name}", "TMPDIR": str(self.temporary / name)}
        (self.temporary / name).mkdir(exist_ok=True)
        with self._log(name).open("wb") as log:
            self._nodes[name] = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _is_up(self, name: str) -> bool:
        return "Ray runtime started" in self._log(name).read_text()

    def processes(self, name: str) -> list[int]:
        """The processes of a node, its actors and tasks among them."""
        return inheriting(f"{MARK}={self.folder.name}.{name}")

    def tasks(self) -> list[int]:
        """The actors of dps on all nodes, and the tasks that they have started."""
        mine, prefix = [], f"{MARK}={self.folder.name}.".encode()
        for pid, environ, command in everything():
            if prefix in environ and (b"HostActor" in command or b"dps.role" in command) and lives(pid):
                mine.append(pid)
        return mine

    def python(self, text: str, timeout_s: float = 60.0) -> str:
        """What a program prints that is attached to Ray."""
        begin = f"import ray; ray.init('{self.address}', log_to_driver=False, logging_level='ERROR')\n"
        done = subprocess.run(
            [PYTHON, "-c", begin + text], env=os.environ | self.environ, capture_output=True, text=True,
            timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def drain(self, name: str) -> None:
        """Have a node drained, as the owner of a spot machine does."""
        node = self.python(f"print([n['NodeID'] for n in ray.nodes() if n['Alive'] and n['NodeName'] == '{name}'][-1])")
        command = [PYTHON, "-m", "ray.scripts.scripts", "drain-node", f"--address={self.address}", f"--node-id={node}"]
        command += [
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=a test",
            "--deadline-remaining-seconds=60",
        ]
        done = subprocess.run(command, env=os.environ | self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def vanish(self, name: str) -> None:
        """A node is gone at once, with all that runs there."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._nodes.pop(name).wait()
        shutil.rmtree(self.temporary / name, ignore_errors=True)

    def replace(self, name: str, labels: str = "") -> None:
        """Have a node of this name that is as new."""
        if name in self._nodes:
            self.vanish(name)
        self.add(name, labels=labels)

    def close(self) -> None:
        for name in list(self._nodes):
            self.vanish(name)
        shutil.rmtree(self.folder, ignore_errors=True)
