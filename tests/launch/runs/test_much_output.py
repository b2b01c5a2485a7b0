"""Much output, lines without end, and disks that are full: memory and logs are bounded, and a run ends as it ended."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps.launch.runs import folder, keeper, logs, times
from dps.launch.runs.logs import Log, Reader, first_since
from dps.launch.runs.view import read_run
from dps.launch.supervision import child
from dps.launch.supervision.plan import small_plan
from dps.transport.clock import wall
from tests.chaos.disk import SmallDisk

MB = 1 << 20
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""What an output does not take stays in a buffer then, as it does for users."""


MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:])
_, status, used = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(process.returncode, used.ru_maxrss * 1024, file=sys.stderr)
"""


def measured(argv: list[str], **settings: Any) -> tuple[int, int]:
    """The exit code of a process, and the most bytes of memory that it or a process of it had. A small process starts
    it: what this one has at its start would count."""
    command = [sys.executable, "-c", MEASURE, *argv]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True, **settings)
    code, memory = done.stderr.split()
    return int(code), int(memory)


# -- lines -------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(["", "a", "b" * 7, "c" * 8, "d" * 9, "e" * 16, "f" * 17, "\u00e4\u4e2d"])), st.booleans()
)
def test_a_long_line_comes_in_pieces_and_nothing_is_lost(texts: list[str], ended: bool) -> None:
    whole = "\n".join(texts) + "\n" * (ended and bool(texts))
    stream = io.TextIOWrapper(io.BytesIO(whole.encode()), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "LONGEST", 8)
        found = list(child.read_lines(stream))
    wanted = [
        piece for text in whole.splitlines() for piece in ([text[i : i + 8] for i in range(0, len(text), 8)] or [""])
    ]
    assert found == wanted


@pytest.mark.slow
def test_output_without_a_newline_takes_neither_memory_nor_disk_without_end(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(
        "import sys\nfor _ in range(100):\n    sys.stdout.write('x' * (1 << 20))\nprint('the end')\n"
    )
    environ = dict(BUFFERED, DPS_RUNS=str(tmp_path / "runs"))
    command = [sys.executable, "-m", "dps.cli", "launch", "--ps", "0", "long.py"]
    code, memory = measured(command, env=environ, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert code == 0 and memory < 200 * MB  # 41 MB; it took 482 MB where lines had no bound
    where = tmp_path / "runs" / "1" / "logs"
    sizes = {path.name: path.stat().st_size for path in where.glob("worker.0.log*")}
    assert len(sizes) == 1 + logs.KEPT and max(sizes.values()) <= logs.LARGEST, sizes
    assert [*Reader(str(where), ["worker:0"]).read_new()][-1].text.endswith("the end")


# -- logs --------------------------------------------------------------------------------------------------------------


def test_a_log_rotates_by_bytes(tmp_path: Path) -> None:
    log = Log(str(tmp_path), "worker:0", largest=400)
    for at in range(20):
        log.write(at, "\u4e2d" * 50)  # 150 bytes
    log.close()
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {2 * (logs.STAMP + 1 + 150 + 1)}


@given(
    lines=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=60),
    since=st.integers(0, 100),
    block=st.integers(1, 200),
)
def test_lines_since_a_time_are_all_and_no_others(
    lines: list[tuple[int, int]], since: int, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    where = tmp_path_factory.mktemp("logs")
    log, at, written = Log(str(where), "worker:0", largest=1000), 0, list[tuple[str, str]]()
    for number, (later, length) in enumerate(lines):
        at += later
        written.append((times.utc(at), f"{number} " + "x" * length))
        log.write(at, written[-1][1])
    log.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "BLOCK", block)
        found = [(entry.at, entry.text) for entry in Reader(str(where), None, times.utc(since)).read_new()]
    kept = [(entry.at, entry.text) for entry in Reader(str(where)).read_new()]
    assert kept == written[len(written) - len(kept) :] and found == [
        line for line in kept if line[0] >= times.utc(since)
    ]


class Counted(io.FileIO):
    """A file that counts the bytes that are read of it."""

    nbytes = 0

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self.nbytes += count
        return count


def large_log(path: Path, nbytes: int) -> float:
    """Write a log of a line for each second; returns the time of the last one."""
    with path.open("w") as file:
        for at in range(nbytes // 1000):
            file.write(f"{times.utc(at)} {'x' * (1000 - logs.STAMP - 2)}\n")
    return float(at)


def test_lines_since_a_time_are_found_from_few_places(tmp_path: Path) -> None:
    last = large_log(tmp_path / "worker.0.log", 8 * MB)
    raw = Counted(tmp_path / "worker.0.log")
    with io.BufferedReader(raw) as file:
        at = first_since(file, times.utc(last - 1))
        assert 8 * MB - 2 * logs.BLOCK < at < 8 * MB and raw.nbytes < 8 * logs.BLOCK


def test_the_first_lines_come_before_the_last_are_read(tmp_path: Path) -> None:
    large_log(tmp_path / "worker.0.log", 2 * MB)
    large_log(tmp_path / "worker.1.log", 2 * MB)
    reader = Reader(str(tmp_path))
    assert next(reader.read_new()).at == times.utc(0)
    assert sum(at for _, at in reader._read.values()) < 10_000
    assert len(list(Reader(str(tmp_path)).read_new())) == 2 * (2 * MB // 1000)


def test_a_log_that_moves_while_it_is_opened_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, reader, opened = Log(str(tmp_path), "worker:0", largest=200), Reader(str(tmp_path)), open
    wrote = iter(range(1000))

    def write(lines: int) -> None:
        for _ in range(lines):
            log.write(1.0, f"line {next(wrote)}")

    def moving(path: Any, *more: Any, **others: Any) -> Any:
        file = opened(path, *more, **others)
        if str(path).endswith(".log"):
            write(4)  # more than there is room for in one file
        return file

    write(10)
    monkeypatch.setattr("builtins.open", moving)
    seen = [entry.text for _ in range(8) for entry in reader.read_new()]
    monkeypatch.undo()
    seen += [entry.text for entry in reader.read_new()]
    log.close()
    assert seen == [f"line {n}" for n in range(next(wrote))]


@pytest.mark.slow
@pytest.mark.parametrize(("argv", "code"), [((), 141), (("--since", "10s"), 0)])
def test_dps_logs_reads_no_more_than_is_wanted(argv: tuple[str, ...], code: int, tmp_path: Path) -> None:
    environ = dict(BUFFERED, DPS_RUNS=str(tmp_path / "runs"))
    path = folder.create(environ["DPS_RUNS"])
    keeper.prepare_run(path, small_plan(), {"name": "x", "command": "", "values": {}})
    for number in (".log", ".log.1", ".log.2", ".log.3"):
        large_log(Path(path, "logs", f"worker.0{number}"), 16 * MB)
    shown, written = os.pipe()
    os.close(shown)  # as `| head` does when it has enough
    command = [sys.executable, "-m", "dps.cli", "logs", "1", *argv]
    found, memory = measured(command, env=environ, stdout=written)
    os.close(written)
    assert found == code and memory < 60 * MB  # 13 MB; it took 130 MB where all was read


def test_dps_logs_that_follows_a_silent_run_ends_with_its_reader(tmp_path: Path) -> None:
    environ = dict(BUFFERED, DPS_RUNS=str(tmp_path / "runs"))
    path = folder.create(environ["DPS_RUNS"])
    keeper.prepare_run(
        path, small_plan(), {"name": "x", "command": "", "values": {}}
    )  # it goes on while this process lives
    command = [sys.executable, "-m", "dps.cli", "logs", "1", "--follow"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(20) == 141


# -- full disks --------------------------------------------------------------------------------------------------------

FILLS = """
import os, sys
print("begins", flush=True)
with open(os.path.join(sys.argv[1], "filler"), "wb", buffering=0) as file:
    for size in (1 << 20, 4096, 1):
        try:
            while True:
                file.write(bytes(size))
        except OSError:
            pass
for line in range(500):
    print("line", line, "x" * 50)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small filesystem."""
    try:
        made = SmallDisk(tmp_path / "disk")
    except OSError as error:
        pytest.skip(str(error))
    yield made.path
    made.remove()


@pytest.mark.parametrize("outputs", ["full", "elsewhere"])
def test_a_run_that_has_done_its_work_on_a_disk_that_became_full_has_succeeded(
    outputs: str, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "fills.py").write_text(FILLS)
    where = disk if outputs == "full" else tmp_path
    command = [sys.executable, "-m", "dps.cli", "launch", "--ps", "0", "fills.py", "--", str(disk)]
    with (where / "out").open("w") as out, (where / "err").open("w") as err:
        environ = dict(BUFFERED, DPS_RUNS=str(disk / "runs"))
        code = subprocess.run(command, cwd=tmp_path, env=environ, stdout=out, stderr=err, check=False).returncode
    path = str(disk / "runs" / "1")
    view = read_run(path, wall())
    assert (code, view.state, view.values["exit_code"], view.tasks["worker:0"]["state"]) == (
        0,
        "SUCCEEDED",
        0,
        "SUCCEEDED",
    )
    if outputs == "elsewhere":
        said = (where / "out").read_text()
        assert said.count("cannot be written: No space left on device; the run goes on") == 1
        assert "[worker:0] line 499" in said and (where / "err").read_text() == ""
    for entry in Reader(f"{path}/logs", ["worker:0"]).read_new():
        assert entry.text == "begins" or entry.text.endswith("x" * 50), "a line is there as a whole or not at all"
    assert not {name for name in os.listdir(path) if name.endswith(".new") or name == "reserve"}


class Filling(io.FileIO):
    """A file on a disk with so many bytes of room."""

    room = 0

    def write(self, data: Any) -> int:
        if not Filling.room:
            raise OSError(28, "No space left on device")
        written = super().write(data[: Filling.room])
        Filling.room -= written
        return written


def test_a_log_goes_on_when_there_is_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FileIO", Filling)
    log = Log(str(tmp_path), "worker:0", largest=120)
    for room, text in ((200, "first"), (130, "x" * 70), (10, "lost"), (0, "lost"), (200, "last")):
        Filling.room = room
        if text == "lost":
            with pytest.raises(OSError, match="No space left on device"):
                log.write(1.0, text)
        else:
            log.write(1.0, text)
    log.close()
    assert [entry.text for entry in Reader(str(tmp_path)).read_new()] == ["first", "x" * 70, "last"]
    assert len(list(tmp_path.iterdir())) == 3, "the second and the last began a file"


@pytest.mark.parametrize(
    "work", ["sys.stdout.write('x' * 10)", "sys.stderr.write('x' * 10)", "print('x' * 10)", "raise ValueError('x')"]
)
def test_outputs_that_cannot_be_written_end_no_command_with_120(work: str, tmp_path: Path) -> None:
    imports = "import sys\nfrom dps.process.flags import guarded"
    code = f"{imports}\ndef work():\n    {work}\n    return 0\nsys.exit(guarded(work))"

    def limit() -> None:  # files end after 5 bytes, as on a disk that becomes full in the middle of a line
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))

    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        command = [sys.executable, "-B", "-c", code]
        done = subprocess.run(command, env=BUFFERED, stdout=out, stderr=err, preexec_fn=limit, check=False)
    assert done.returncode == (0 if "stderr" in work else 2)
