"""What `dps launch` shows, to readers who stand still, are slow, or have gone."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from dps.launch.supervision import output as showing
from dps.launch.supervision.output import BufferedOutput
from dps.transport.clock import now
from tests.launch.clusters.test_local_processes import until

LINE = "x" * 989  # 1,000 bytes with "[worker:0] " and the newline


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, TextIO]]:
    """The two ends of a pipe, with room for 200 kB in front of it."""
    monkeypatch.setattr(showing, "MOST", 200_000)
    monkeypatch.setattr(showing, "STILL_S", 0.3)
    out, into = os.pipe()
    with open(into, "w") as stream:
        yield out, stream
        os.close(out)


def test_of_a_reader_who_stands_still_nobody_waits_and_what_is_missing_is_told(pipe: tuple[int, TextIO]) -> None:
    out, stream = pipe
    show = BufferedOutput("7", stream=stream)
    began = now()
    for _ in range(1000):
        show.show_line("worker:0", LINE)
    show.show_line("dps", "the launcher says something")
    show.wait_until_read(hurried=True)
    assert now() - began < 20 * showing.STILL_S
    read = bytearray()
    reader = threading.Thread(daemon=True, target=lambda: read.extend(iter_all(out, b"and goes on\n")))
    reader.start()
    until(lambda: show._size < showing.MOST, 10.0)
    show.show_line("worker:0", "and goes on")
    show.wait_until_read(hurried=False)
    reader.join()
    lines = read.decode().splitlines()
    told = [line for line in lines if "missing" in line]
    shown = lines.count(f"[worker:0] {LINE}")
    assert told == [
        f"[dps] {1000 - shown} lines are missing here: the reader of this output stood still; dps logs 7 shows all"
    ]
    assert 200 <= shown < 400
    assert lines[shown:] == [told[0], "[dps] the launcher says something", "[worker:0] and goes on"]


def iter_all(out: int, end: bytes) -> bytes:
    read = b""
    while not read.endswith(end):
        read += os.read(out, 65536)
    return read


def test_a_slow_reader_gets_all_lines_in_their_order(pipe: tuple[int, TextIO]) -> None:
    out, stream = pipe
    show, read = BufferedOutput("7", several=True, stream=stream), list[bytes]()
    reader = threading.Thread(daemon=True, target=lambda: read.append(iter_all(out, b" 1999\n")))
    reader.start()
    for number in range(2000):
        show.show_line("worker:0", f"{LINE} {number}")
    show.wait_until_read(hurried=False)
    reader.join()
    assert re.findall(r" (\d+)\n", read[0].decode()) == [str(number) for number in range(2000)]
    assert read[0].startswith(b"[7.worker.0] xxx")


def test_a_reader_who_has_gone_and_a_full_disk_hold_up_nobody() -> None:
    out, into = os.pipe()
    os.close(out)
    with open(into, "w") as gone, open("/dev/full", "w") as full:
        for stream, trouble in (gone, "Broken pipe"), (full, "No space left on device"):
            show = BufferedOutput("7", stream=stream)
            show.show_line("worker:0", LINE)
            show.wait_until_read(hurried=False)
            assert show.trouble is not None and show.trouble.strerror == trouble


def test_a_pipe_that_does_not_block_gets_all_lines(pipe: tuple[int, TextIO]) -> None:
    out, stream = pipe
    os.set_blocking(stream.fileno(), False)
    show, read = BufferedOutput("7", stream=stream), list[bytes]()
    for _ in range(150):
        show.show_line("worker:0", LINE)
    show.show_line("worker:0", "last")
    reader = threading.Thread(daemon=True, target=lambda: read.append(iter_all(out, b"last\n")))
    reader.start()
    show.wait_until_read(hurried=False)
    reader.join()
    assert len(read[0].splitlines()) == 151


def test_a_stream_without_a_file_gets_all_lines() -> None:
    stream = io.StringIO()
    show = BufferedOutput("7", stream=stream)
    show.show_line("worker:0", "\u00e4")
    show.wait_until_read(hurried=False)
    assert stream.getvalue() == "[worker:0] \u00e4\n"


CHATTY = """
import os, sys
import numpy as np, dps
with dps.Server.from_env() as server, dps.Session(
    server, {"a": np.zeros(10, np.float32)}, optimizer=dps.optim.SGD(1.0)
) as session:
    while not session.should_stop():
        step = session.push({"a": np.ones_like(session.pull()["a"])}).step
        print("x" * 100_000, flush=True)
        if step == 200:
            open("at-200", "w").close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_whose_reader_stands_still_trains_on_and_ends_in_order_when_it_is_told(
    tmp_path: Path, number: int
) -> None:
    (tmp_path / "program.py").write_text(CHATTY)
    command = [sys.executable, "-m", "dps.cli", "launch", "program.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path) as process:
        until(lambda: (tmp_path / "at-200").exists())
        process.send_signal(number)
        try:
            assert process.wait(20) == 0, "nobody has read a byte"
        finally:
            process.kill()
