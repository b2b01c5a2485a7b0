"""A Ray for tests: a head and another node on this machine, and the Python that has Ray."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.cluster import ROOT
from tests.launch.engines.needs import need
from tests.launch.test_local import until

PYTHON = os.environ.get("DPS_RAY_PYTHON") or sys.executable
"""Ray is large, so it may be in an environment of its own, with dps (`make engines` makes one)."""


def own_address() -> str:
    """The address of this machine that Ray finds by itself: a driver must name the head by it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        try:
            tried.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(tried.getsockname()[0])


class Ray:
    """Starts it, and ends it."""

    def __init__(self) -> None:
        there = sys.executable != PYTHON or importlib.util.find_spec("ray") is not None
        need(there, "Ray in the environment of DPS_RAY_PYTHON (pip install ray)")
        self.folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        with socket.socket() as free:
            free.bind(("", 0))
            self.address = f"{own_address()}:{free.getsockname()[1]}"
        self.environ = {
            "PYTHONPATH": str(ROOT), "RAY_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
        }  # fmt: skip
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            port = self.address.rpartition(":")[2]
            self._start("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.folder}")
            until(lambda: self.nodes() == 1, 100.0)
            self._start(f"--address={self.address}")
            until(lambda: self.nodes() == 2, 100.0)
        except BaseException:
            self.close()
            raise

    def _start(self, *flags: str) -> None:
        command = [PYTHON, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=6", *flags]
        command += ["--object-store-memory=80000000", "--disable-usage-stats"]
        with Path(self.folder, f"start-{len(self._processes)}.log").open("wb") as log:
            environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
            started = subprocess.Popen(
                command, env=environ | self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(started)

    def python(self, text: str, timeout_s: float = 60.0) -> str:
        """What a program prints that has Ray."""
        done = subprocess.run(
            [PYTHON, "-c", text], env=os.environ | self.environ, capture_output=True, text=True, timeout=timeout_s,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout.strip() if done.returncode == 0 else done.stderr[-300:]

    def nodes(self) -> int:
        """How many nodes live."""
        said = self.python(
            f"import ray; ray.init('{self.address}', log_to_driver=False, logging_level='ERROR')\n"
            "print(sum(node['Alive'] for node in ray.nodes()))"
        )
        return int(said) if said.isdecimal() else 0

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(15.0)
            except subprocess.TimeoutExpired:
                process.kill()
