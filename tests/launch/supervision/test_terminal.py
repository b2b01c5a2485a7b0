"""Escape sequences in the output of tasks: colours reach the terminal, nothing else does."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dps import cli
from dps.launch.runs import folder, keeper
from dps.launch.runs.logs import Log
from dps.launch.supervision.output import Output, coloured, plain
from dps.launch.supervision.plan import small_plan
from dps.launch.supervision.supervisor import Supervisor
from dps.transport.clock import wall

RED, RESET = "\x1b[31m", "\x1b[0m"
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
HOSTILE = st.text(st.sampled_from("\x1b\x9b\x9d\x90\x9c\x07\x00\r\n\t[]()P\\;:?0123mHJKcA \u00e4\u2028x"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{RED}red{RESET} plain", f"{RED}red{RESET} plain{RESET}"),
        (f"\x1b[38;2;1;2;3mblue{RESET}", f"\x1b[38;2;1;2;3mblue{RESET}"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b[1A\x1b[2Kprogress 50 %", "progress 50 %"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "textlink"),
        ("\x1bPq#0\x1b\\text", "text"),
        ("\x1b[?1049h\x1b[6n\x1bc\x1b(0text", "text"),
        ("\x9b2J\x9d0;title\x9ctext", "text"),
        ("a\x1b[\x1b[31m2J", f"a{RED}2J{RESET}"),
        ("\x1b]0;never ended", "0;never ended"),
        ("bell\x07 back\x08 null\x00", "bell back null"),
        ("a table\twith tabs, and \u00e4 \u4e2d", "a table\twith tabs, and \u00e4 \u4e2d"),
        ("", ""),
    ],
)
def test_colours_are_left_and_end_with_the_line(text: str, shown: str) -> None:
    assert coloured(text) == shown
    assert plain(text) == COLOUR.sub("", shown)


@given(HOSTILE)
@example("\x1b" * 50)
@example("\x90" * 50)
def test_nothing_but_colours_is_left_of_any_text(text: str) -> None:
    left = COLOUR.sub("", coloured(text))
    assert not [letter for letter in left if letter not in "\t\n" and (letter < " " or "\x7f" <= letter <= "\x9f")]
    assert left == plain(text)


@pytest.mark.parametrize("worst", ["\x1b", "\x1b[", "\x1b]", "\x90", "\x9b0", "\x1b(", "\x1b[0;"])
def test_a_long_line_of_escapes_is_read_once(worst: str) -> None:
    coloured(worst * 200_000)  # seconds where each is compared with all that follow; the test has a time limit


def test_the_launcher_and_the_reason_of_a_run_show_no_escapes() -> None:
    stream = io.StringIO()
    supervisor = Supervisor(small_plan(), Output(stream).print_line)
    for text in (
        "Traceback (most recent call last):",
        '  File "t.py", line 3, in f',
        "\x1b]0;owned\x07ValueError: \x1b[2Jno",
    ):
        supervisor._take_line("worker:0", text)
    supervisor._take_line("chief", "dps: no\x1b[2J room")
    assert "\x1b" not in stream.getvalue() and "[worker:0] ValueError: no\n" in stream.getvalue()
    assert supervisor._errors.found == {"worker:0": "ValueError: no (t.py, line 3)"}
    assert "\x1b" not in supervisor.chief.reason


def test_dps_logs_shows_no_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPS_RUNS", str(tmp_path))
    path = folder.create(folder.root())
    keeper.prepare_run(path, small_plan(1, 1, ("train.py",)), {"name": "x", "command": "", "values": {}})
    log = Log(f"{path}/logs", "worker:0")
    log.write(wall(), f"\x1b[2J{RED}hello\x1b]0;title\x07")
    log.close()
    assert cli.main(["logs", "1"]) == 0
    assert capsys.readouterr().out == f"[1.worker.0] {RED}hello{RESET}\n"
