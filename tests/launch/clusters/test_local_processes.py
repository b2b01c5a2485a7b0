"""Clusters of real processes: what comes back, who may die, and that nothing is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import dps
from dps.errors import ConfigError, DeadlineExceeded, DpsError, TaskLost
from dps.transport.current import runtime
from tests.launch.programs import count, deaf, echo, endless, fail, fail_untold


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Poll a condition of another process; its value once it is true."""
    clock = runtime()
    end = clock.now() + timeout_s
    while clock.now() < end:
        value = condition()
        if value:
            return value
        clock.sleep(0.02)
    raise AssertionError("it did not happen in time")


def process_of(local: dps.LocalCluster, name: str) -> Any:
    assert local._supervisor is not None
    return local._supervisor.tasks.children[name].process


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def test_async_then_results_history_and_nothing_left() -> None:
    before = {p.pid for p in children()}
    with dps.LocalCluster(ps=2, workers=2) as local:
        run = local.run(count, 40)
        first, second = run.results
        with local.session() as reader:
            final = reader.pull()["a"]
    assert first["pushes"] + second["pushes"] == final[0] >= 40
    assert (final == final[0]).all()
    for task, result in enumerate((first, second)):  # one of them may have found all done when it came
        rows = [row for row in run.history if row["worker"] == f"worker:{task}"]
        assert len(rows) == result["pushes"]
        assert not rows or (rows[0]["loss"] == 0.5 and rows[-1]["step"] <= final[0])
    assert {p.pid for p in children()} <= before


@pytest.fixture(scope="class")
def local() -> Iterator[dps.LocalCluster]:
    """Started on a thread that is gone when the tests begin, as a notebook might do it."""
    local = dps.LocalCluster(ps=1, workers=1)
    starting = threading.Thread(target=local.start)
    starting.start()
    starting.join()
    yield local
    local.stop()


@pytest.mark.parametrize("processes", [True, False])
def test_a_failure_that_cannot_be_told_as_it_is_ends_the_wait(processes: bool) -> None:
    with dps.LocalCluster(ps=1, workers=1, processes=processes) as local:
        for of_file, text in (False, "Untold"), (True, r"FileNotFoundError: data \\udcff"):
            with pytest.raises(DpsError, match=f"worker:0 failed: {text}"):
                local.run(fail_untold, of_file).wait(20)


class TestOneCluster:
    """What needs no cluster of its own."""

    def test_two_runs_go_on_with_the_same_values(self, local: dps.LocalCluster) -> None:
        assert local.run(count, 10).results[0]["step"] == 10
        assert local.run(count, 25).results[0]["a"][0] == 25

    def test_values_travel_whole(self, local: dps.LocalCluster) -> None:
        table = np.arange(6, dtype=np.int64).reshape(2, 3)
        (found,) = local.run(echo, table, {"x": (1, 2.5, None)}, b"\x00").results
        assert found[0] == 0 and found[2:] == [{"x": (1, 2.5, None)}, b"\x00"]
        np.testing.assert_array_equal(found[1], table)

    def test_a_failing_function_is_told_with_its_worker_and_traceback(self, local: dps.LocalCluster) -> None:
        with pytest.raises(DpsError, match="worker:0 failed: RuntimeError") as told:
            local.run(fail).wait()
        assert "does not want to" in str(told.value) and "programs.py" in str(told.value)

    def test_a_second_run_has_to_wait_for_the_first(self, local: dps.LocalCluster) -> None:
        first = local.run(echo)
        with pytest.raises(ConfigError, match="the run before has not ended"):
            local.run(echo)
        with pytest.raises(DeadlineExceeded, match="worker:0 did not end within 0.01 s"):
            first.wait(0.01)
        assert first.wait(30).done()

    def test_a_run_is_stopped_in_order_and_the_next_one_runs(self, local: dps.LocalCluster) -> None:
        run = local.run(endless, True)
        until(lambda: run.history or run.done())
        assert "worker:0 running" in repr(run) and "loss 0.5" in repr(run) and local.target in repr(run)
        assert "ps:0 running, worker:0 running" in repr(local) and local.target in repr(local)
        assert run.stop().wait(0).results == ["ended by itself"]
        assert local.run(echo).results == [[0]]

    def test_a_worker_that_does_not_hear_is_killed_after_the_grace(self, local: dps.LocalCluster) -> None:
        run = local.run(deaf)
        assert run.stop(timeout=0.0).wait(0).results == [None]
        assert "worker:0 stopped" in repr(run)

    def test_a_function_without_a_path_names_the_extra(
        self, local: dps.LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(ConfigError, match=r"dps\[notebook\]"):
            local.run(lambda server: None)
        assert local.run(echo, 1).results == [[0, 1]]

    def test_a_cluster_whose_chief_was_lost_for_good_says_so(self, local: dps.LocalCluster) -> None:
        supervisor = local._supervisor
        assert supervisor is not None
        for _ in range(2):  # it is started again once
            chief = supervisor.tasks.children["chief"]
            chief.send_signal(signal.SIGKILL)
            until(lambda chief=chief: supervisor.tasks.children["chief"] is not chief or supervisor.tasks.lost_task())
        with pytest.raises(TaskLost, match="chief of this cluster is gone"):
            local.run(echo)


def test_all_in_this_process() -> None:
    with dps.LocalCluster(ps=2, workers=2, processes=False) as local:
        results = local.run(count, 30).results
        with pytest.raises(DpsError, match="does not want to"):
            local.run(fail).wait(60)
    assert sum(r["pushes"] for r in results) >= 30


@pytest.fixture(scope="class")
def here() -> Iterator[dps.LocalCluster]:
    with dps.LocalCluster(ps=1, workers=2, processes=False) as local:
        yield local


class TestInThisProcess:
    """Workers that are threads."""

    def test_a_run_is_stopped_in_order_and_the_next_one_runs(self, here: dps.LocalCluster) -> None:
        run = here.run(endless, True)
        until(lambda: len({row["worker"] for row in run.history}) == 2)
        assert run.stop().wait(0).results == ["ended by itself"] * 2
        assert here.run(echo, 1).wait(60).results == [[0, 1], [1, 1]]

    def test_a_worker_that_does_not_ask_is_ended_in_its_sessions_next_call(self, here: dps.LocalCluster) -> None:
        run = here.run(endless, False)
        until(lambda: len({row["worker"] for row in run.history}) == 2)
        assert run.stop(timeout=0.0).wait(0).results == [None, None]
        assert repr(run).count("stopped") == 2
        again = here.run(endless, True)
        until(lambda: len({row["worker"] for row in again.history}) == 2)
        assert again.stop().results == ["ended by itself"] * 2

    def test_a_reader_does_not_wait_for_workers_that_failed_before_they_brought_variables(self) -> None:
        with dps.LocalCluster(ps=1, workers=1, processes=False) as local:
            local.run(fail)
            with pytest.raises(DpsError, match="worker:0 failed: RuntimeError: worker 0 does not want to"):
                local.session()

    def test_stopping_the_cluster_stops_its_run(self) -> None:
        local = dps.LocalCluster(ps=1, workers=1, processes=False).start()
        run = local.run(endless, True)
        until(lambda: run.history or run.done())
        with dps.LocalCluster(ps=1, workers=1, processes=False):  # as a notebook's cell that is run again
            assert run.wait(0).results == ["ended by itself"]
            assert "stopped" in repr(local)
            with pytest.raises(ConfigError, match="the cluster was stopped"):
                local.run(echo)


@pytest.mark.slow
def test_a_killed_worker_stops_nobody_where_there_is_a_backup() -> None:
    with dps.LocalCluster(ps=2, workers=3) as local:
        run = local.run(count, 150, {"update": "backup", "slow": 0.01})
        until(lambda: len({row["worker"] for row in run.history}) == 3)
        os.kill(process_of(local, "worker:1").pid, signal.SIGKILL)
        with pytest.raises(DpsError, match=r"worker:1 failed: its process ended without a result \(SIGKILL\)"):
            run.wait(60)
        assert all(run._results[i]["step"] >= 150 for i in (0, 2))


@pytest.mark.slow
def test_a_killed_ps_brings_an_announced_rollback_and_training_goes_on(tmp_path: Path) -> None:
    with dps.LocalCluster(ps=2, workers=2) as local:
        run = local.run(count, 150, {"checkpoint_dir": str(tmp_path), "slow": 0.01})
        until(lambda: any(row["step"] > 45 for row in run.history))
        os.kill(process_of(local, "ps:1").pid, signal.SIGKILL)
        results = run.wait(60).results
        with local.session() as reader:
            final = reader.pull()
    assert all(r["rolled_back"] == 1 and r["step"] >= 150 for r in results)
    assert (final["a"] == final["a"][0]).all() and final["a"][0] >= 150


@pytest.mark.slow
def test_a_killed_chief_is_restarted_and_training_goes_on(tmp_path: Path) -> None:
    with dps.LocalCluster(ps=1, workers=2) as local:
        run = local.run(count, 150, {"checkpoint_dir": str(tmp_path), "slow": 0.01})
        until(lambda: any(row["step"] > 45 for row in run.history))
        os.kill(process_of(local, "chief").pid, signal.SIGKILL)
        results = run.wait(60).results
    assert all(r["step"] >= 150 for r in results)


def launch(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "dps.cli", "launch", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd)


PROGRAM = """
import numpy as np, dps, os, sys, time
with dps.Server.from_env() as server, dps.Session(
    server, {"a": np.zeros(10, np.float32)}, optimizer=dps.optim.SGD(1.0), timeout=60,
    hooks=[dps.StopAtStep(last_step=int(sys.argv[1]))],
) as session:
    print("begins", os.getpid(), flush=True)
    while not session.should_stop():
        session.push({"a": np.ones_like(session.pull()["a"])})
        time.sleep(0.005)
    print("ends at", session.global_step, flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return tmp_path


def lines_until(process: subprocess.Popen[str], words: str, times: int = 1) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        times -= words in line
        if times == 0:
            return lines
    raise AssertionError("\n".join(lines))


def rest(process: subprocess.Popen[str]) -> str:
    text = process.communicate(timeout=100)[0]
    assert not psutil.pid_exists(process.pid) or process.returncode is not None
    return text


def test_launch_prefixes_lines_and_ends_with_zero_soon_after_its_workers_and_leaves_nothing(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(program / "temporary"))
    before = {*program.rglob("*"), *Path("/dev/shm").glob("*dps*")}
    began = runtime().now()
    process = launch("--ps", "2", "--workers", "2", "--update", "sync", "program.py", "--", "20", cwd=program)
    text = "\n".join(lines_until(process, "begins", 2)) + "\n"
    started_s = runtime().now() - began
    text += "\n".join(lines_until(process, "ends at", 2))
    tasks, at = psutil.Process(process.pid).children(), runtime().now()
    text += rest(process)
    assert runtime().now() - at < 2 * started_s  # 0.3 s after a start of 1.3 s; one that waits for tasks takes 6 s
    assert process.returncode == 0, text
    assert not [p for p in tasks if p.is_running()]
    own = program / "temporary" / f"dps-of-{os.geteuid()}"  # stays, empty: decision 72
    assert {*program.rglob("*"), *Path("/dev/shm").glob("*dps*")} == {*before, own}
    assert "[worker:0] ends at 20" in text and "[worker:1] ends at 20" in text
    assert re.match(r"\[dps\] run \d+ writes to /.*/runs/\d+\n\[dps\] chief at ipc:///", text), text


@pytest.mark.slow
def test_what_a_killed_launcher_has_left_is_removed_by_the_next_start_and_by_prune(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # a path that is short enough for sockets
    monkeypatch.setenv("TMPDIR", str(temporary))

    def killed() -> set[Path]:
        process = launch("--ps", "1", "--workers", "1", "program.py", "--", "100000", cwd=program)
        lines_until(process, "begins")
        tasks = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=20)
        psutil.wait_procs(tasks, 20)
        return set(temporary.glob("dps-*"))  # of the launcher, and of each task

    first = killed()
    assert first and not killed() & first, "the next start has removed them"
    prune = [sys.executable, "-m", "dps.cli", "prune", "--keep", "100"]
    said = subprocess.run(prune, capture_output=True, text=True, check=True).stdout
    assert "of processes that were killed" in said and not list(temporary.glob("dps-*"))
    shutil.rmtree(temporary)


@pytest.mark.slow
def test_launch_ends_with_three_when_a_ps_is_lost_for_good(program: Path) -> None:
    process = launch("--ps", "1", "--workers", "2", "program.py", "--", "100000", cwd=program)
    lines_until(process, "begins", 2)
    ps = next(p for p in psutil.Process(process.pid).children() if "ps" in p.cmdline() and "--job" in p.cmdline())
    ps.kill()
    text = rest(process)
    assert process.returncode == 3, text
    assert text.splitlines()[-1] == "[dps] the run is over: ps:0 was lost (SIGKILL)"
    assert "checkpoint_dir" in text


def test_ctrl_c_once_drains(program: Path) -> None:
    process = launch("--ps", "1", "--workers", "2", "program.py", "--", "100000", cwd=program)
    lines_until(process, "begins", 2)
    process.send_signal(signal.SIGINT)
    text = rest(process)
    assert process.returncode == 0, text
    assert text.count("ends at") == 2


def test_ctrl_c_twice_stops_at_once(program: Path) -> None:
    (program / "program.py").write_text(PROGRAM.replace("time.sleep(0.005)", "time.sleep(30)"))
    process = launch("--ps", "1", "--workers", "1", "program.py", "--", "100000", cwd=program)
    lines_until(process, "begins")
    tasks = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    lines_until(process, "stopping after this step")
    process.send_signal(signal.SIGINT)
    text = rest(process)
    assert process.returncode == 130, text
    assert not [p for p in tasks if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_killed_launcher_leaves_nothing_behind(program: Path) -> None:
    process = launch("--ps", "1", "--workers", "1", "program.py", "--", "100000", cwd=program)
    lines_until(process, "begins")
    tasks = psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=60)
    psutil.wait_procs(tasks, timeout=60)
    assert not [p for p in tasks if p.is_running()]


ENDS = {
    "raise RuntimeError('no data here')": (1, "ended with exit code 1 before it took part in the training"),
    "os.kill(os.getpid(), 9)": (1, "was killed (SIGKILL) before it took part in the training"),
    "sys.exit(0)": (0, "finished without taking part in the training"),
}


@pytest.mark.parametrize("end", [next(iter(ENDS)), *(pytest.param(end, marks=pytest.mark.slow) for end in [*ENDS][1:])])
def test_a_worker_that_ends_before_its_session_keeps_nobody_waiting_in_sync(program: Path, end: str) -> None:
    code, words = ENDS[end]
    early = f"import os, sys\nif os.environ['DPS_TASK'] == '1':\n    {end}\n"
    (program / "program.py").write_text(early + PROGRAM)
    process = launch("--ps", "1", "--workers", "2", "--update", "sync", "program.py", "--", "5", cwd=program)
    text = rest(process)
    assert process.returncode == code, text
    assert "ends at 5" in text
    assert f"worker:1 {words}; the others go on without it\n" in text


FOLLOWS = """
if os.environ['DPS_TASK'] == '1':
    with dps.Server.from_env() as server, {follower} as weights:
        while weights.swap() is None:
            time.sleep(0.01)
        os.write(1, b"follows " + weights.published.label.encode() + b"\\n")  # whole beside lines of the log
        # end
    sys.exit()
"""


@pytest.mark.slow
@pytest.mark.thinned
@pytest.mark.parametrize("follower", ["dps.Follower(server)", "dps.Follower(server.target)"])
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_a_worker_that_follows_and_trains_nothing_keeps_nobody_waiting(
    program: Path, follower: str, fails: bool
) -> None:
    text = FOLLOWS.format(follower=follower)
    text = text.replace("# end", "raise RuntimeError('no game here')") if fails else text
    publishing = PROGRAM.replace("session.push({", "session.publish('one'); session.push({")
    assert publishing != PROGRAM
    (program / "program.py").write_text("import os, sys, time\nimport dps\n" + text + publishing)
    process = launch("--ps", "1", "--workers", "2", "program.py", "--", "300", cwd=program)
    text = rest(process)
    assert process.returncode == int(fails), text
    assert "follows one" in text and "ends at 300" in text and "was silent" not in text, text
    said = "worker:1 ended with exit code 1 before it took part in the training; the others go on without it\n"
    assert (said in text) is fails and "without taking part" not in text


@pytest.mark.slow
def test_workers_that_were_all_killed_leave_a_checkpoint_of_the_last_step(program: Path) -> None:
    saving = PROGRAM.replace("SGD(1.0)", "SGD(1.0), checkpoint_dir='kept'")
    assert saving != PROGRAM
    (program / "program.py").write_text(saving)
    process = launch("--ps", "1", "--workers", "1", "program.py", "--", "100000", cwd=program)
    lines_until(process, "begins")
    until(lambda: list((program / "kept").glob("step-000000000000*")))
    worker = next(p for p in psutil.Process(process.pid).children() if "worker" in p.cmdline())
    clock = runtime()
    clock.sleep(0.5)
    worker.kill()
    before = clock.now()
    text = rest(process)
    assert process.returncode == 1, text
    assert text.splitlines()[-1] == "[dps] the run failed: worker:0 was killed (SIGKILL), exit code 137"
    assert "was silent" not in text
    assert clock.now() - before < 40.0  # not the 50 s that workers are given to come back
    assert int(sorted(p.name for p in (program / "kept").glob("step-*"))[-1].split("-")[1]) > 0


@pytest.mark.slow
def test_a_late_worker_takes_part(program: Path) -> None:
    chief = subprocess.Popen(
        [sys.executable, "-m", "dps.role", "--job", "chief", "--chief", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert chief.stdout is not None
    address = chief.stdout.readline().split()[-1]
    command = [sys.executable, "-m", "dps.role", "--chief", address, "--job"]
    ps = subprocess.Popen([*command, "ps"], stdout=subprocess.PIPE, text=True)
    worker = [*command, "worker", "--program", "program.py", "--", "400"]
    first = subprocess.Popen(worker, stdout=subprocess.PIPE, text=True, cwd=program)
    lines_until(first, "begins")
    second = subprocess.Popen(worker, stdout=subprocess.PIPE, text=True, cwd=program)
    assert "begins" in rest(second)
    assert "ends at" in rest(first)
    assert (first.returncode, second.returncode) == (0, 0)
    rest(chief)
    rest(ps)
    assert (chief.returncode, ps.returncode) == (0, 0)
