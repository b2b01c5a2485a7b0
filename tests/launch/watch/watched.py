"""Runs of real processes, and `dps watch` on them as a command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dps.transport.clock import now, pause

COMMAND = [sys.executable, "-m", "dps.cli"]
STEPS = 30
"""Pushes of each worker; then it waits for a file."""
TRAINER = f"""
import os, time
import numpy as np, dps
with dps.Server.from_env() as server, dps.Session(
    server, {{"w": np.zeros(1000, np.float32), "table": np.zeros((10, 300))}}, optimizer=dps.optim.SGD(0.1), timeout=60,
    hooks=[dps.LogMetrics(10**9, batch=32)], checkpoint_dir=os.environ["OUTPUT_DIR"],
) as session:
    for step in range({STEPS}):
        values = session.pull()
        time.sleep(0.01)
        session.push({{"w": values["w"] - 1, "table": values["table"]}}, loss=0.25)
    print("</b> has pushed", flush=True)
    while not os.path.exists("go"):
        session.pull()
        time.sleep(0.05)
"""


def environ(folder: Path) -> dict[str, str]:
    return {**os.environ, "DPS_RUNS": str(folder / "runs")}


def dps(folder: Path, *argv: str, code: int = 0) -> str:
    """What a command prints. Blocks until it ends."""
    done = subprocess.run(
        [*COMMAND, *argv], cwd=folder, env=environ(folder), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@contextmanager
def watching(folder: Path, *argv: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """`dps watch`: its process, its address, and the lines that it has printed by then. It is ended by Ctrl-C."""
    process = subprocess.Popen(
        [*COMMAND, "watch", *argv], cwd=folder, env=environ(folder), stdout=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    try:
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], "dps watch has ended"
        if "--metrics-token-file" in argv:
            lines.append(process.stdout.readline())
        yield process, re.search(r"http://\S+", "".join(lines))[0], lines  # type: ignore[index]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


@contextmanager
def eight_tasks(folder: Path) -> Iterator[None]:
    """A run of a chief, two ps and five workers, each of which has made its pushes and waits."""
    (folder / "train.py").write_text(TRAINER)
    dps(folder, "launch", "--detach", "--ps", "2", "--workers", "5", "train.py")
    try:
        until(lambda: dps(folder, "logs").count("has pushed") == 5)
        until(lambda: status(folder)["training"]["step"] == 5 * STEPS)
        yield
    finally:
        dps(folder, "kill", "1", "--grace", "1")


def status(folder: Path) -> dict[str, Any]:
    """What `dps status --json` says of the run."""
    found: dict[str, Any] = json.loads(dps(folder, "status", "1", "--json"))
    return found


def until(condition: Any, timeout_s: float = 90.0) -> None:
    """Wait for something of other processes. Blocks."""
    deadline = now() + timeout_s
    while not condition():
        assert now() < deadline, "it did not happen in time"
        pause(0.05)


def steady(told: dict[str, Any]) -> dict[str, Any]:
    """What of `dps status --json` stands still while the workers wait."""
    sessions = ("pushes", "step", "staleness", "received")
    shards = {
        task: {name: values[name] for name in ("address", "state", "epoch", "step", "version", "nbytes", "applied")}
        | {"sessions": {w: {name: row[name] for name in sessions} for w, row in values["sessions"].items()}}
        for task, values in told["ps"].items()
    }
    training = {name: told["training"][name] for name in ("phase", "text", "step", "loss", "saved")}
    run = {
        name: told[name] for name in ("id", "name", "command", "state", "since", "chief", "tasks", "exit_code", "path")
    }
    return {"ps": shards, "training": training, "run": run}
