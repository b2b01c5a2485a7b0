"""Which checkpoint_dir a session may name in a run that others may join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dps
from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.checkpoint import Journal, JournalState, MemoryStorage
from dps.chief.checkpoint_folder import CheckpointRoot, is_below
from dps.errors import CheckpointError
from dps.messages.runs import CloseSession, OpenSession
from dps.variables.plan import VariableSpec, make_plan
from tests.chief.led import Led, plan
from tests.variables.models import SGD

ELSEWHERE = {"checkpoint_dir": "/elsewhere/run"}


def led_below(root: str | None, host: str = "", storage: MemoryStorage | None = None) -> Led:
    led = Led(storage=storage)
    led.chief.cluster.checkpoint_root = CheckpointRoot(root, host)
    return led.gather()


def open_of_the_host(led: Led, folder: str) -> None:
    """A session in the process of the chief itself asks to be let in."""
    led.chief.cluster.workers.known[0].ticket = led.desk.own.ticket
    message = OpenSession(0, "worker", 0, 1, "worker:0", 0, plan(2), {"checkpoint_dir": folder})
    led.chief.handle(message, Sender(0, 1, "worker:0", 0, led.desk.own))


def test_a_folder_outside_of_the_root_is_refused_with_what_to_do_and_nothing_is_written(tmp_path: Path) -> None:
    led = led_below(str(tmp_path))
    answer = led.open(1, settings={"checkpoint_dir": str(tmp_path / "run" / ".." / ".." / "other")})
    assert isinstance(answer, CheckpointError) and "worker:1 asks for checkpoints in" in str(answer)
    assert f"not below {tmp_path}, the folder for checkpoints of this run" in str(answer)
    assert "OUTPUT_DIR" in str(answer) and "another --checkpoint-root FOLDER" in str(answer)
    assert led.chief.sessions.known == {} and led.desk.storage.names("/elsewhere") == []
    led.open(1, settings={"checkpoint_dir": str(tmp_path / "run")})
    led.configure()
    assert led.chief.epochs.run is not None and led.chief.epochs.run.checkpoint_dir == str(tmp_path / "run")


def test_a_chief_that_was_given_no_folder_takes_none_from_a_session_and_says_how_to_give_one() -> None:
    led = led_below("")
    answer = led.open(1, settings=ELSEWHERE)
    assert isinstance(answer, CheckpointError) and "--checkpoint-root FOLDER (DPS_CHECKPOINT_ROOT" in str(answer)
    led.open(1, settings={})
    assert list(led.chief.sessions.known) == [1]


def test_a_session_without_a_checkpoint_dir_and_a_run_of_one_account_know_no_root() -> None:
    led = led_below(None)
    led.open(1, settings=ELSEWHERE)
    assert list(led.chief.sessions.known) == [1]


def test_who_has_joined_by_a_token_names_no_folder_in_a_run_of_one_account_either() -> None:
    led = led_below(None)
    led.desk.user = "worker a-joined-key"
    assert isinstance(led.open(1, settings=ELSEWHERE), CheckpointError)
    led.desk.user = "worker"
    led.open(0, settings=ELSEWHERE)
    led.desk.user = "worker a-joined-key"
    led.open(1, settings=ELSEWHERE)
    assert list(led.chief.sessions.known) == [0, 1], "the run's own folder may be named"


def test_where_a_worker_hosts_the_chief_its_session_gives_the_folder_and_the_others_wait_for_it() -> None:
    led = led_below("", "worker:0")
    answer = led.open(1, settings=ELSEWHERE)
    assert isinstance(answer, Waiting) and "once worker:0, which hosts it, has opened a session" in answer.reason
    open_of_the_host(led, "/elsewhere/run")
    led.open(1, settings=ELSEWHERE)
    assert list(led.chief.sessions.known) == [0, 1]


def test_what_the_host_has_not_named_is_refused() -> None:
    led = led_below("", "worker:0")
    open_of_the_host(led, "/mine/run")
    led.chief.epochs.run = None  # its session is gone before there was a run
    assert isinstance(led.open(1, settings=ELSEWHERE), CheckpointError)


@pytest.mark.parametrize(("root", "reads"), [(None, True), ("", False), ("/mine", False), ("/elsewhere", True)])
def test_a_close_makes_the_chief_read_a_journal_only_where_its_session_might_have_asked_for_checkpoints(
    root: str | None, reads: bool
) -> None:
    storage = MemoryStorage()
    state = JournalState(7, 2000, (), {"worker:1": 1}, (), {"ended": False}, (), {})
    Journal(storage, "/elsewhere/run").save(state)
    led = led_below(root, storage=storage)
    led.tell(CloseSession(5, "", "worker", 1, "/elsewhere/run"), "close")
    assert (led.chief.members.next_incarnation == 2000) == reads


def reading(path: str) -> dict[str, Any]:
    """A plan with a variable whose first values a file has."""
    spec = VariableSpec("a", (2,), "<f4", SGD, False, dps.init.FromFile(path).to_wire())
    return make_plan([spec], (0, 1), lambda *_: 0, None).to_wire()


@pytest.mark.parametrize(("root", "joined"), [("", False), ("", True), ("/srv", False), ("/srv", True), (None, True)])
def test_where_others_may_join_a_session_names_no_file_outside_of_the_root(root: str | None, joined: bool) -> None:
    led = led_below(root)
    led.desk.user = "worker a-joined-key" if joined else "worker"
    for path in "/elsewhere/w", "/srv/../elsewhere/w", "relative":
        answer = led.open(1, plan=reading(path))
        assert isinstance(answer, CheckpointError) and f"worker:1 asks for first values from {path}" in str(answer)
        assert "\n" not in str(answer) and led.chief.sessions.known == {}
    if root:
        led.open(1, plan=reading("/srv/new/w"))
        assert list(led.chief.sessions.known) == [1]


def test_a_run_of_one_account_reads_any_file() -> None:
    led = led_below(None)
    led.open(1, plan=reading("/elsewhere/w"))
    assert list(led.chief.sessions.known) == [1]


def test_a_file_below_the_folder_that_the_host_has_named_may_be_read() -> None:
    led = led_below("", "worker:0")
    open_of_the_host(led, "/mine/run")
    led.chief.epochs.run = None
    assert isinstance(led.open(1, plan=reading("/elsewhere/w"), settings={}), CheckpointError)
    led.open(1, plan=reading("/mine/run/w"), settings={})
    assert 1 in led.chief.sessions.known


def test_links_are_followed_before_a_path_counts_as_below(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    (tmp_path / "same").symlink_to(tmp_path / "root")
    root = str(tmp_path / "root")
    assert (
        is_below(root, root) and is_below(f"{tmp_path}/same/run", root) and is_below(f"{root}/run", f"{tmp_path}/same")
    )
    assert not is_below(f"{root}/link/run", root) and not is_below(f"{root}s", root) and not is_below("/", root)
