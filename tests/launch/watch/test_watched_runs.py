"""`dps watch` as a command on runs of real sessions: its figures are those of `dps status`, and it ends in order."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import pty
import re
import select
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import dps
from dps import cli
from dps.launch.runs import folder
from tests.launch.runs.test_status import run
from tests.launch.watch import watched
from tests.launch.watch.readings import events
from tests.launch.watch.watched import STEPS, eight_tasks, status, steady, watching


@pytest.fixture
def one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dps.Session]:
    """A run with one task, which this process is, and its session."""
    monkeypatch.setenv("DPS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("dps.worker.agent.BEAT_S", 0.05)
    hooks = [dps.LogMetrics(10**9, batch=32)]
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, {"w": np.zeros(300)}, optimizer=dps.optim.SGD(1.0), hooks=hooks) as session,
    ):
        run(tmp_path / "runs", "one", server.target)
        yield session


def enter(url: str) -> tuple[int, str, str]:
    """Use an address that dps watch has printed, as a browser does: the port, the page's path and the cookie."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=20)
    connection.request("GET", f"/?{parts.query}")
    answer = connection.getresponse()
    assert answer.status == 200, answer.status
    (path,) = re.findall(r"url=(/\w+/)", answer.read().decode())
    cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
    connection.close()
    return parts.port or 0, path, cookie


def test_a_run_of_one_task_is_shown_until_ctrl_c(
    one_task: dps.Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_task.push({"w": np.ones(300)}, loss=3.0)
    flags = ("--metrics-token-file", "token")
    with watching(tmp_path, *flags) as (_, url, lines), events(*enter(url)) as news:
        assert lines[0] == f"run 1 is at {url}\n" and "Ctrl-C ends the page" in lines[1]
        one_task.push({"w": np.ones(300)}, loss=0.25)
        told = next(each for each in news if each["status"]["training"]["step"] == 2)
        assert told["status"]["name"] == "one" and told["status"]["ps"]["0"]["nbytes"] == 2400
        told = next(each for each in news if each["status"]["training"]["loss"] == 0.25)
        assert cli.main(["status", "--json"]) == 0
        of_status = json.loads(capsys.readouterr().out)
        assert steady(told["status"]) == steady(of_status)

        token = (tmp_path / "token").read_text().strip()
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port or 0, timeout=20)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        families = {f.name: f for f in text_string_to_metric_families(connection.getresponse().read().decode())}
        connection.close()
        assert families["dps_step"].samples[0].value == 2 and families["dps_ps_size_bytes"].samples[0].value == 2400
        assert "token" in lines[2] and token not in "".join(lines)

        path = folder.find("1")
        states = folder.read(os.path.join(path, "state.json"))
        folder.write(os.path.join(path, "state.json"), states | {"state": "SUCCEEDED", "exit_code": 0})
        ended = next(each for each in news if each["is_over"])
        assert ended["status"]["state"] == "SUCCEEDED" and ended["last"]["training"]["step"] == 2


def test_enter_prints_another_address_and_ctrl_c_in_the_terminal_ends_it(one_task: dps.Session, tmp_path: Path) -> None:
    own, theirs = pty.openpty()
    command = [shutil.which("setsid") or "setsid", "--ctty", *watched.COMMAND, "watch", "1"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=watched.environ(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        first = read_address(own)
        os.write(own, b"\n")
        second = read_address(own)
        assert urlsplit(first).port == urlsplit(second).port
        with pytest.raises(AssertionError, match="403"):
            enter(first)
        enter(second)
        os.write(own, b"\x03")
        assert process.wait(20) == 0
    finally:
        process.kill()
        os.close(own)


def read_address(terminal: int) -> str:
    """The next address that a terminal shows. Blocks."""
    said = ""
    while not (found := re.search(r"(http://127\S+)\r\n", said)):
        assert select.select([terminal], [], [], 60)[0], said
        said += os.read(terminal, 1).decode()
    return found[1]


def test_a_run_that_is_not_there_is_the_error_of_dps_status(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.environ["DPS_RUNS"] = str(tmp_path)
    said = []
    for command in ("status", "watch"):
        assert cli.main([command, "77"]) == 2
        said.append(capfd.readouterr().err)
    assert said[0] == said[1] and said[0].startswith("dps: no run '77' in ")
    assert cli.main(["watch"]) == 2 and capfd.readouterr().err.startswith(f"dps: no runs in {tmp_path}")


def test_a_wrong_port_and_a_taken_one_are_one_line(one_task: dps.Session, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "1", "--port", "70000"]) == 2
    assert capfd.readouterr().err == "dps: got --port 70000; wanted 1 to 65535, or 0 for a free one\n"
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    try:
        assert cli.main(["watch", "1", "--port", str(server.server_port)]) == 2
    finally:
        server.server_close()
    said = capfd.readouterr().err
    assert said == (
        f"dps: port {server.server_port} of 127.0.0.1 is taken; leave --port out and dps watch takes a free one, "
        "or name another\n"
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_the_figures_of_eight_tasks_are_those_of_dps_status(tmp_path: Path) -> None:
    with eight_tasks(tmp_path), watching(tmp_path, "1") as (_, url, _lines), events(*enter(url)) as news:
        told: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: told.extend(news), daemon=True)
        reader.start()
        watched.until(lambda: told and told[-1]["status"]["training"]["loss"] == 0.25)
        of_status = status(tmp_path)
        watched.until(lambda: steady(told[-1]["status"]) == steady(of_status))
        assert len(of_status["tasks"]) == 8 and {row["task"] for row in told[-1]["tasks"]} == {
            "1.chief", "1.ps.0", "1.ps.1", *(f"1.worker.{number}" for number in range(5)),
        }  # fmt: skip
        assert of_status["training"]["step"] == 5 * STEPS
        assert sum(values["nbytes"] for values in of_status["ps"].values()) == 4000 + 24000
        printed = [line[2] for each in told for line in each["lines"] if line[1].startswith("worker")]
        assert printed.count("</b> has pushed") == 5
        (tmp_path / "go").touch()
        watched.until(lambda: told[-1]["is_over"])
        assert told[-1]["status"]["state"] == "SUCCEEDED" and told[-1]["last"]["training"]["step"] == 5 * STEPS
    reader.join(20)
    assert not reader.is_alive()  # Ctrl-C ends what pages are sent
