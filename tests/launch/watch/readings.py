"""Readings of a run that are made up, and a server of its page on them."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dps.launch.runs.reports import RunReports
from dps.launch.runs.view import View
from dps.launch.watch.access import Access
from dps.launch.watch.feed import PageFeed
from dps.launch.watch.metrics import RunMetrics
from dps.launch.watch.server import WatchServer

EVIL = '</script><img src=x onerror=alert(1)>&\u2028"'
"""What a run may be called, or print."""


def session(pushes: int, received: int = 0, sent: int = 0) -> dict[str, int]:
    """A session's row in the report of a ps."""
    return {"pushes": pushes, "counted": pushes, "step": pushes, "staleness": 2, "received": received, "sent": sent}


def of_ps(epoch: int, step: int, sessions: dict[str, Any], applied: int | None = None) -> dict[str, Any]:
    """The report of a ps."""
    return {
        "address": "ipc:///x", "state": "ready", "epoch": epoch, "step": step, "version": step + 1, "nbytes": 4000,
        "leases": 1, "sessions": sessions, "waits": "", "refused_messages": 0, "refused": 0, "dropped": 1, "pulls": 3,
        "applied": step if applied is None else applied, "copied_pulls": 0, "aborted": 0,
    }  # fmt: skip


def reading(
    path: str, ps: dict[str, Any], epoch: int = 1, loss: float = 0.5, state: str = "RUNNING", name: str = "x",
    saved: str = "",
) -> RunReports:  # fmt: skip
    """A reading of a run with two workers; without `ps`, one in which the chief says nothing."""
    chief = {
        "phase": "training", "text": "", "epoch": epoch, "saved": saved, "saved_ago": "1 s ago" if saved else "",
        "progress": {"worker:0": [5, 10.0, loss], "worker:1": [6, 20.0, loss]},
        "batches": {"worker:0": 32, "worker:1": 8},
        "live": ["worker:0", "worker:1"], "waiting": [], "finished": [], "given_up": [],
        "cluster": {"ps": {task: values["address"] for task, values in ps.items()}},
    }  # fmt: skip
    tasks = {
        task: {"state": state, "since": "", "pid": 1, "exit_code": None, "restarts": 0}
        for task in ("chief", "ps:0", "worker:0", "worker:1")
    }
    values = {
        "state": state, "since": "", "tasks": tasks, "exit_code": None, "reason": "", "chief": "ipc:///x",
    }  # fmt: skip
    asked = {"name": name, "command": "dps launch x.py", "values": {}}
    return RunReports(View(path, asked, values, None), chief if ps else {}, ps)


@contextmanager
def serving(path: str, metrics_token: str = "", port: int = 0) -> Iterator[WatchServer]:
    """The server of a page on the readings that its feed gets."""
    os.makedirs(os.path.join(path, "logs"), exist_ok=True)
    with WatchServer(port, PageFeed(path), RunMetrics(), Access(metrics_token), "dps-run-4").serving() as server:
        yield server


Answer = tuple[int, dict[str, str], str]


def ask(server: WatchServer, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Answer:
    """The status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def enter(server: WatchServer, headers: dict[str, str] | None = None) -> str:
    """Use the token, as a browser does; returns its cookie."""
    status, found, _ = ask(server, server.make_url().partition(str(server.port))[2], headers=headers)
    assert status == 200, status
    return found["set-cookie"].partition(";")[0]


@contextmanager
def events(port: int, path: str, cookie: str) -> Iterator[Iterator[dict[str, Any]]]:
    """What a page is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"{path}events", headers={"Cookie": cookie})
    answer = connection.getresponse()
    assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    try:
        yield (json.loads(line[6:]) for line in answer if line.startswith(b"data: "))
    finally:
        connection.close()
