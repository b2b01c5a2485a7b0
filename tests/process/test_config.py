"""What an entry point sets for its process: malloc, processors, the garbage collector."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dps.errors import ConfigError
from dps.process import config

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc and processor affinity")


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", (0,)), ("0,2-3", (0, 2, 3)), ("3,1", (1, 3)), ("4-4, 2", (2, 4)), ("1-2,2-3", (1, 2, 3))]
)
def test_processors_are_read_from_a_list_of_numbers_and_ranges(text: str, cpus: tuple[int, ...]) -> None:
    assert config.parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2", "0;1", f"0-{10**22}"])
def test_a_list_of_processors_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"wanted numbers of processors, as 0,2-3"):
        config.parse_cpus(text)


def test_processors_are_written_as_they_are_read() -> None:
    assert config.format_cpus((3, 0, 2, 5, 6, 7)) == "0,2-3,5-7"
    assert config.parse_cpus("0,2-3,5-7") == (0, 2, 3, 5, 6, 7)


def test_each_task_gets_neighbouring_processors_of_its_own() -> None:
    tasks = ["ps:0", "worker:0", "worker:1"]
    assert config.deal_cpus(tasks, range(8)) == {"ps:0": (0, 1, 2), "worker:0": (3, 4, 5), "worker:1": (6, 7)}


def test_where_there_are_fewer_processors_than_tasks_they_go_round() -> None:
    assert config.deal_cpus(["ps:0", "worker:0", "worker:1"], [4, 6]) == {
        "ps:0": (4,), "worker:0": (6,), "worker:1": (4,),
    }  # fmt: skip


@LINUX
def test_a_processor_that_is_not_allowed_is_named() -> None:
    allowed = config.allowed_cpus()
    with pytest.raises(ConfigError, match=f"got --cpus 99999; this process may use {config.format_cpus(allowed)}"):
        config.pin([99999])
    assert config.allowed_cpus() == allowed


def test_a_system_without_affinity_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with pytest.raises(ConfigError, match="this system cannot pin"):
        config.pin([0])


# -- malloc -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_malloc(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("MALLOC_") or n == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_malloc")
def test_launched_tasks_keep_large_blocks() -> None:
    made = config.environment()
    assert {name: made[name] for name in config.MALLOC} == {
        "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000", "MALLOC_TOP_PAD_": "67108864",
        "MALLOC_ARENA_MAX": "1",
    }  # fmt: skip


@pytest.mark.usefixtures("no_malloc")
@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_MMAP_THRESHOLD_", "65536"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")]
)
def test_an_environment_that_sets_malloc_is_left_alone(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    made = config.environment()
    assert made[name] == value and "MALLOC_MMAP_MAX_" not in made
    assert config.keep_large_blocks() is False


def test_where_there_is_no_glibc_nothing_is_set_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert config.keep_large_blocks() is False


FAULTS = """
import resource, sys, threading
from dps.process import config
if sys.argv[1] == "kept":
    assert config.keep_large_blocks()
import numpy as np
def faults_of_five():
    np.ones(64 << 20, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        np.ones(64 << 20, np.uint8)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
faults_of_five()
thread = threading.Thread(target=faults_of_five)  # a ps works on a thread, whose arena is another
thread.start()
thread.join()
"""


@LINUX
@pytest.mark.usefixtures("no_malloc")
def test_large_blocks_are_not_faulted_in_at_every_message() -> None:
    def faults(how: str) -> list[int]:
        ended = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        return [int(line) for line in ended.stdout.split()]

    kept, given_back = faults("kept"), faults("")
    assert max(kept) < 50  # of 81,920 pages of 4 kB
    assert min(given_back) >= 150  # even as huge pages of 2 MB there are 160


def test_what_is_loaded_at_the_start_is_never_walked_by_the_garbage_collector() -> None:
    code = (
        "import gc; from dps.process import config\n"
        "with config.loading():\n    off = not gc.isenabled(); import dps.task.server\n"
        "print(off, gc.isenabled(), gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1_000)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True"] * 4


IMPORTS = """
import gc, msgpack, numpy, zmq
{before}
import dps
dps.Session
from dps.client.session import Session
print(gc.get_freeze_count() > 0, any(Session is found for found in gc.get_objects(2)))
"""


@pytest.mark.parametrize(
    ("before", "said"),
    [
        pytest.param("", "False True", marks=pytest.mark.skipif(
            sys.version_info[:2] == (3, 12), reason="Python 3.12 starts with frozen objects, which stay frozen"
        )),
        ("gc.freeze()", "True False"),
    ],
    ids=["usually", "the program has frozen objects"],
)  # fmt: skip
def test_what_an_import_makes_is_old_at_once_and_what_the_program_has_frozen_stays(before: str, said: str) -> None:
    code = IMPORTS.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said, done
