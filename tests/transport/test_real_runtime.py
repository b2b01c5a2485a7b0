from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from contextvars import ContextVar
from pathlib import Path

import pytest

from dps.checkpoint.storage import LocalStorage
from dps.errors import NotAuthenticated
from dps.transport.current import runtime
from dps.transport.endpoint import Connected, Delivery
from dps.transport.runtime import RealRuntime, real_runtime


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_outside_the_simulator_the_runtime_is_the_one_of_the_process() -> None:
    assert runtime() is real_runtime()
    assert real_runtime().name == f"pid {os.getpid()}"
    assert not real_runtime().simulated
    assert real_runtime().tuning.piece_nbytes == 1 << 20
    assert isinstance(real_runtime().storage, LocalStorage)


def test_all_threads_get_the_same_runtime() -> None:
    found: list[RealRuntime] = []
    threads = [threading.Thread(target=lambda: found.append(real_runtime())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(each) for each in found} == {id(real_runtime())}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_runtime_and_sockets_of_its_own() -> None:
    script = """
import os
from dps.transport.endpoint import Delivery
from dps.transport.runtime import real_runtime
parent, here = real_runtime(), real_runtime().endpoint("127.0.0.1:0")
pid = os.fork()
if pid == 0:
    assert real_runtime() is not parent and real_runtime().name == f"pid {os.getpid()}"
    mine = real_runtime().endpoint()
    mine.send(here.address, b"from the child")
    while not isinstance(event := mine.receive(5), Delivery):
        assert event is not None
    mine.close()
    raise SystemExit(0 if event.header == b"from the parent" else 1)
event = here.receive(5)
assert event.header == b"from the child"
here.send(event.route, b"from the parent")
status = os.waitpid(pid, 0)[1]
here.close()
assert status == 0, status
"""
    ended = run_python(script)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_two_runtimes_have_different_random_numbers() -> None:
    assert RealRuntime().random.getrandbits(64) != RealRuntime().random.getrandbits(64)


def test_monotonic_time_moves_on_over_a_sleep() -> None:
    before = real_runtime().now()
    real_runtime().sleep(0.002)
    real_runtime().sleep(-1.0)
    assert real_runtime().now() - before >= 0.002
    assert real_runtime().wall() > 1.7e9


def test_a_task_sees_the_context_variables_of_who_started_it() -> None:
    scope: ContextVar[str] = ContextVar("scope", default="none")
    scope.set("of the caller")
    seen: list[str] = []

    def target() -> None:
        seen.append(scope.get())
        scope.set("of the task")

    task = real_runtime().spawn("reader", target)
    assert task.join(5.0)
    assert not task.alive
    assert task.name == "reader"
    assert seen == ["of the caller"]
    assert scope.get() == "of the caller"


def test_joining_a_task_that_goes_on_gives_false_in_time() -> None:
    gate = threading.Event()

    def target() -> None:
        gate.wait(10)

    task = real_runtime().spawn("waiter", target)
    assert not task.join(0.001)
    assert task.alive
    gate.set()
    assert task.join(5.0)


def test_what_a_task_raises_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def target() -> None:
        raise ValueError("no such shard")

    with caplog.at_level(logging.ERROR, logger="dps"):
        assert real_runtime().spawn("ps 3", target).join(5.0)
    (record,) = caplog.records
    assert record.getMessage() == "task ps 3 failed"
    assert record.exc_info is not None and str(record.exc_info[1]) == "no such shard"


def test_an_endpoint_of_the_runtime_is_bound_where_it_was_asked() -> None:
    here = real_runtime().endpoint("localhost:0")
    there = real_runtime().endpoint()
    try:
        assert here.address.startswith("localhost:") and not here.address.endswith(":0")
        assert there.address == ""
        there.connect(here.address)
        assert there.receive(5.0) == Connected(here.address)
        there.send(here.address, b"hello")
        event = here.receive(5.0)
        assert isinstance(event, Delivery) and event.header == b"hello"
    finally:
        there.close()
        here.close()


def test_an_endpoint_beyond_loopback_is_refused() -> None:
    with pytest.raises(NotAuthenticated, match="beyond this machine without keys"):
        real_runtime().endpoint("0.0.0.0:0")


LEFT_OPEN = """
import threading
from dps.transport.runtime import real_runtime
here = real_runtime().endpoint("127.0.0.1:0")
mine = real_runtime().endpoint()
mine.send("127.0.0.1:1", b"never arrives", [bytes(1 << 20)], done=lambda: None)
mine.connect(here.address)
mine.receive(5)
threading.Thread(target=here.receive, args=(3600.0,), daemon=True).start()
for _ in range(100):
    mine.send(here.address, b"on its way at the end", [bytes(1 << 22)], done=lambda: None)
print("end")
"""


def test_a_process_with_open_endpoints_and_unsent_messages_ends() -> None:
    ended = run_python(LEFT_OPEN)
    assert (ended.returncode, ended.stdout) == (0, "end\n"), ended.stderr


LAST_WORD = """
import sys
from dps.transport.endpoint import Connected
from dps.transport.runtime import real_runtime
mine = real_runtime().endpoint()
mine.connect(sys.argv[1])
assert isinstance(mine.receive(5), Connected)
mine.send(sys.argv[1], b"last word", [bytes(1 << 22)])
mine.close()
"""


def test_what_was_sent_just_before_the_end_of_a_process_arrives(tmp_path: Path) -> None:
    here = real_runtime().endpoint(f"ipc://{tmp_path}/node")
    try:
        ended = run_python(LAST_WORD, here.address)
        assert ended.returncode == 0, ended.stderr
        event = here.receive(5.0)
        assert isinstance(event, Delivery) and event.header == b"last word" and event.frames[0].nbytes == 1 << 22
    finally:
        here.close()
