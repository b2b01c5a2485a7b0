"""A dataset that is served over sockets, and the dataset task as a process."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps import role
from dps.data.messages import feed_name
from dps.data.prefetching import PrefetchQueue
from dps.data.remote_dataset import LEAVE_S


def test_workers_share_each_epoch_of_a_served_dataset() -> None:
    with dps.Server.create_local_server() as server:
        x = np.arange(200, dtype=np.float32).reshape(100, 2)
        dps.data.serve(dps.data.from_arrays({"x": x, "n": np.arange(100)}).shuffle(100, seed=1).batch(5), server)
        found: list[list[int]] = [[], []]

        def work(place: int) -> None:
            for _ in range(2):
                for batch in remotes[place]:
                    assert batch["x"].flags.writeable
                    assert (batch["x"][:, 0] == 2 * batch["n"]).all()
                    found[place].extend(batch["n"].tolist())

        remotes = [dps.data.remote(server, prefetch=place) for place in range(2)]
        threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(found[0] + found[1]) == sorted([*range(100)] * 2)


def test_passes_of_the_task_that_serves_are_no_epochs_of_the_workers() -> None:
    dataset = dps.data.from_arrays(np.arange(9)).shuffle(9, seed=2)
    first, _ = [int(n) for n in dataset], list(dataset)
    with dps.Server.create_local_server() as server:
        dps.data.serve(dataset, server)
        assert [int(n) for n in dps.data.remote(server)] == first


def test_a_first_pass_through_an_epoch_that_is_over_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with dps.Server.create_local_server() as server:
        dps.data.serve(dps.data.from_arrays(np.arange(4)), server)
        remote = dps.data.remote(server)
        assert [len(list(remote)) for _ in range(2)] == [4, 4] and "is over" not in caplog.text
        assert list(dps.data.remote(server)) == []
        assert "dataset 'dataset': epoch 0 is over, so this first pass has no batches; unless" in caplog.text


def test_elements_that_are_none_are_not_the_end_of_the_data() -> None:
    with dps.Server.create_local_server() as server:
        dps.data.serve(dps.data.from_arrays(np.arange(3)).map(lambda n: None if n == 0 else n), server)
        first, *others = dps.data.remote(server)
        assert first is None and [int(n) for n in others] == [1, 2]


def test_a_pass_that_is_broken_off_gives_back_what_it_has_not_finished() -> None:
    with dps.Server.create_local_server() as server:
        serving = dps.data.serve(dps.data.from_arrays(np.arange(10)), server)
        first = iter(dps.data.remote(server))
        assert [int(next(first)) for _ in range(3)] == [0, 1, 2]
        first.close()
        assert serving.position["finished"] == []
        assert [int(n) for n in dps.data.remote(server)] == list(range(2, 10))


def test_bad_use_of_serving_is_told_in_one_line() -> None:
    with dps.Server.create_local_server() as server:
        dataset = dps.data.from_arrays(np.arange(10))
        with pytest.raises(dps.ConfigError, match="serve: got a list, wanted a dataset"):
            dps.data.serve([1, 2], server)  # type: ignore[arg-type]
        with pytest.raises(dps.ConfigError, match="ahead: got 0, wanted a whole number from 1"):
            dps.data.serve(dataset, server, ahead=0)
        with pytest.raises(dps.ConfigError, match="tasks: got 0, wanted a whole number from 1"):
            dps.data.serve(dataset, server, tasks=0)
        with pytest.raises(dps.ConfigError, match="prefetch: got 99, wanted 0 to 32"):
            dps.data.remote(server, prefetch=99)
        with pytest.raises(dps.ConfigError, match="wanted the position of a dataset that is served"):
            dps.data.serve(dataset, server, position={"epoch": 0})
        with pytest.raises(dps.ConfigError, match="got those of dataset:3, wanted that of worker:0"):
            dps.data.serve(dataset, server, position={"dataset:3": {"from": {"epoch": 0}, "finished": []}})
        assert feed_name("x") == "feed/x"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"server": "127.0.0.1:1"}, "remote: got '127.0.0.1:1' and 'dataset', wanted this process's dps.Server and a"),
        ({"name": 7}, "and 7, wanted this process's dps.Server and a name"),
        ({"name": ""}, "and '', wanted this process's dps.Server and a name"),
        (
            {"name": "a\nb"},
            "and 'a\\nb', wanted this process's dps.Server and a name of 1 to 200 characters in one line",
        ),
        ({"name": "\ud800"}, "wanted this process's dps.Server and a name"),
        ({"name": "a" * 201}, "wanted this process's dps.Server and a name"),
        ({"prefetch": -1}, "remote: prefetch: got -1, wanted a whole number from 0"),
        ({"prefetch": 1.5}, "remote: prefetch: got 1.5, wanted a whole number from 0"),
        ({"prefetch": True}, "remote: prefetch: got True, wanted a whole number from 0"),
        ({"tasks": 0}, "remote: tasks: got 0, wanted a whole number from 1"),
        ({"tasks": "2"}, "remote: tasks: got '2', wanted a whole number from 1"),
        ({"timeout": float("nan")}, "timeout: got nan, wanted seconds"),
        ({"timeout": "long"}, "timeout: got 'long', wanted seconds"),
        ({"timeout": 0}, "remote: timeout: got 0, wanted seconds above 0, or dps.FOREVER"),
    ],
)
def test_arguments_of_a_remote_dataset_that_make_no_sense_are_refused_at_once(settings: Any, text: str) -> None:
    with dps.Server.create_local_server() as server, pytest.raises(dps.ConfigError, match=re.escape(text)):
        dps.data.remote(**{"server": server, **settings})


def test_a_dataset_is_served_by_a_server_under_a_name() -> None:
    with dps.Server.create_local_server() as server:
        dataset, wanted = dps.data.from_arrays(np.arange(2)), "wanted this process's dps.Server and a name"
        for where, name in ((server, ""), (server, 7), (server.target, "x"), (server, "\ud800")):
            with pytest.raises(dps.ConfigError, match=f"serve: got .* and {re.escape(repr(name))}, {wanted}"):
                dps.data.serve(dataset, where, name)  # type: ignore[arg-type]
        dps.data.serve(dataset, server)
        with pytest.raises(dps.ConfigError, match="serve: worker:0 serves 'dataset' already, wanted another name"):
            dps.data.serve(dataset, server)
        assert len(list(dps.data.remote(server))) == 2


def test_a_dataset_task_says_what_it_was_to_serve(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "feed_of_none.py").write_text("number = 3\n\ndef dataset():\n    return [1]\n")
    for program, text in (
        ([], "got no --program, wanted --program FILE:NAME"),
        (["--program", "feed.py"], "got --program feed.py, wanted --program FILE:NAME"),
        (["--program", f"{tmp_path}/feed_of_none.py:number"], "got 3, wanted a dps.data.Dataset"),
        (["--program", f"{tmp_path}/feed_of_none.py:dataset"], "got [1], wanted a dps.data.Dataset"),
        (["--program", f"{tmp_path}/feed_of_none.py:other"], "has no 'other'; it has dataset; wanted a"),
    ):
        assert role.main(["--job", "dataset", "--chief", "127.0.0.1:1", *program]) == 2
        assert text in capfd.readouterr().err


def test_a_handover_that_is_looked_at_does_not_wait() -> None:
    line = PrefetchQueue(1)
    assert line.poll() is None
    line.put("item")
    assert line.poll() == "item"


def test_workers_wait_for_all_tasks_that_are_to_serve_and_take_from_each() -> None:
    with dps.Server.create_local_server() as server:
        numbers = dps.data.from_arrays(np.arange(10))
        feeders = [dps.Server(None, "dataset", task, chief=server.target) for task in range(2)]
        dps.data.serve(numbers.shard(2, 0), feeders[0], tasks=2)
        with pytest.raises(dps.DeadlineExceeded, match="is served by 1 of 2 tasks after 0.5 s"):
            iter(dps.data.remote(server, timeout=0.5))
        dps.data.serve(numbers.shard(2, 1), feeders[1], tasks=2)
        remote = dps.data.remote(server)
        assert sorted(int(number) for number in remote) == [*range(10)]
        positions = remote.position()
        assert sorted(positions) == ["dataset:0", "dataset:1"]
        with pytest.raises(
            dps.ConfigError, match="those of 2 tasks .*and 1 serve now, each another part; start as many"
        ):
            dps.data.serve(numbers, feeders[0], "again", position=positions, tasks=1)
        for feeder in feeders:
            feeder.stop()


def test_a_second_thread_that_uses_a_pass_is_told() -> None:
    go_on = threading.Event()

    def slow(n: Any) -> Any:
        assert n == 0 or go_on.wait(30)
        return n

    with dps.Server.create_local_server() as server:
        dps.data.serve(dps.data.from_arrays(np.arange(3)).map(slow), server)
        batches = iter(dps.data.remote(server))
        found = [int(next(batches))]
        thread = threading.Thread(target=lambda: found.extend(int(n) for n in batches))
        thread.start()
        while not batches._one_reader._lock.locked():
            assert thread.is_alive()
        for call in (batches.__next__, batches.close, batches.done):
            with pytest.raises(dps.ConfigError, match="worker:0: dataset 'dataset': another thread uses this iterator"):
                call()
        go_on.set()
        thread.join(30)
        assert found == [0, 1, 2]


def test_a_pass_that_is_closed_after_its_server_does_not_wait_for_anybody() -> None:
    with dps.Server.create_local_server() as server:
        dps.data.serve(dps.data.from_arrays(np.arange(3)), server)
        batches = iter(dps.data.remote(server))
        next(batches)
    began = time.monotonic()
    batches.close()
    assert time.monotonic() - began < LEAVE_S
