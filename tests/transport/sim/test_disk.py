"""The disk that simulated processes share."""

from __future__ import annotations

import pytest

from dps.checkpoint.memory import MemoryStorage
from dps.errors import CheckpointError
from dps.transport.current import runtime
from dps.transport.sim import DiskFull, SlowDisk, World


def test_writes_take_time_while_the_disk_is_slow() -> None:
    times: list[float] = []
    world = World(faults=[SlowDisk(at=1.0, seconds=2.0, write_s=0.25), SlowDisk(at=2.0, seconds=1.0, write_s=0.5)])

    def main() -> int:
        for begin in (0.5, 1.5, 2.5, 3.5):
            runtime().sleep(begin - world.now)
            runtime().storage.write("file", [b"x"])
            times.append(world.now - begin)
        return 0

    world.process("ps:0", main)
    world.run()
    assert times == [0.0, 0.25, 0.5, 0.0]


def test_others_run_while_a_write_waits_and_see_it_only_when_it_is_done() -> None:
    seen: list[tuple[float, bool]] = []
    world = World(faults=[SlowDisk(at=0.0, seconds=60.0, write_s=1.0)])

    def writer() -> int:
        runtime().sleep(0.1)
        runtime().storage.write("file", [b"x"])
        return 0

    def reader() -> int:
        for _ in range(3):
            runtime().sleep(0.5)
            seen.append((world.now, runtime().storage.exists("file")))
        return 0

    world.process("ps:0", writer)
    world.process("ps:1", reader)
    world.run()
    assert seen == [(0.5, False), (1.0, False), (1.5, True)]


def test_a_process_killed_in_the_middle_of_a_write_has_written_nothing() -> None:
    world = World(faults=[SlowDisk(at=0.0, seconds=60.0, write_s=1.0)])

    def writer() -> int:
        runtime().sleep(0.1)
        runtime().storage.write("file", [b"x"])
        return 0

    world.process("ps:0", writer)
    world.at(0.5, lambda: world.kill("ps:0"))
    world.run()
    assert not world.storage.exists("file")


def test_a_full_disk_refuses_writes_until_there_is_room() -> None:
    world = World(faults=[DiskFull(at=1.0, seconds=1.0)])

    def main() -> int:
        runtime().storage.write("old", [b"x"])
        runtime().sleep(1.5)
        with pytest.raises(CheckpointError, match="ENOSPC"):
            runtime().storage.write("new", [b"x"])
        assert runtime().storage.names("") == ["old"]
        runtime().sleep(1.0)
        runtime().storage.write("new", [b"xy"])
        assert runtime().storage.size("new") == 2
        return 0

    process = world.process("ps:0", main)
    world.run()
    assert process.error is None


def test_a_dead_process_can_neither_read_nor_delete() -> None:
    refused: list[str] = []
    world = World()

    def main() -> int:
        storage = runtime().storage
        storage.write("kept", [b"x"])
        try:
            runtime().sleep(10.0)
        finally:
            for call in (storage.remove_tree, storage.read, storage.exists, storage.check_writable):
                try:
                    call("kept")
                except BaseException as error:
                    refused.append(type(error).__name__)
        return 0

    world.process("ps:0", main)
    world.at(1.0, lambda: world.kill("ps:0"))
    world.run()
    assert refused == ["GreenletExit"] * 4
    assert bytes(world.storage.read("kept")) == b"x"


def test_a_disk_that_is_given_outlives_its_world_and_keeps_its_own_hook() -> None:
    writes: list[str] = []
    storage = MemoryStorage(before_write=lambda path, nbytes: writes.append(path))
    for seed in range(2):
        world = World(seed=seed, storage=storage, faults=[DiskFull(at=1.0, seconds=1.0)])
        world.process(f"ps:{seed}", lambda: bool(runtime().storage.write(runtime().name, [b"x"])))
        world.run()
    assert storage.names("") == ["ps:0", "ps:1"]
    assert writes == ["ps:0", "ps:1"]
