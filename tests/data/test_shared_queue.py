"""Shared queues over sockets, as programs use them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import Aborted, NotAuthenticated
from dps.queues.messages import QUEUES, Get, LeaveQueue
from dps.transport.current import runtime
from dps.variables.items import pack, unpack


@pytest.fixture(scope="module")
def server() -> Iterator[dps.Server]:
    with dps.Server.create_local_server() as made:
        yield made


def test_an_item_comes_back_as_it_was_put_and_is_the_callers_own(server: dps.Server) -> None:
    queue = dps.data.queue(server, "nested")
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    item = {"a": array, "b": [1, 2.5, "text", None, True, b"bytes"], "c": (np.float32(3), {"empty": np.zeros((0, 4))})}
    queue.put(item)
    array += 1
    got = queue.get()
    assert got["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and got["a"].dtype == np.int16 and got["a"].flags.writeable
    assert got["b"] == item["b"]
    assert isinstance(got["c"], tuple) and got["c"][0] == 3 and got["c"][0].dtype == np.float32
    assert got["c"][1]["empty"].shape == (0, 4)
    queue.leave()


def test_another_process_that_uses_a_clients_number_is_not_that_client(
    server: dps.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.actors.authorization.EARLY_S", 0.0)
    queue = dps.data.queue(server, "own")
    queue.put("item")
    caller, to = Caller(runtime(), "somebody"), Ref(server.target, QUEUES)
    try:
        with pytest.raises(NotAuthenticated, match="got a message of somebody before its ticket"):
            caller.ask(to, Get("own", queue._client, 1, 1), 5.0)
        caller.connect(server.target, runtime().secret())
        with pytest.raises(Aborted, match="does not know this client"):
            caller.ask(to, Get("own", queue._client, 1, 1), 5.0)
        caller.ask(to, LeaveQueue("own", queue._client), 5.0)
    finally:
        caller.close()
    assert queue.get() == "item"
    queue.leave()


def test_several_producers_and_consumers_share_all_items(server: dps.Server) -> None:
    got: list[list[int]] = [[], [], []]

    def consume(place: int) -> None:
        got[place].extend(dps.data.queue(server, "many", capacity=4))

    def produce(first: int) -> None:
        queue = dps.data.queue(server, "many", capacity=4)
        for number in range(first, first + 40):
            queue.put(number)

    consumers = [threading.Thread(target=consume, args=(place,)) for place in range(3)]
    producers = [threading.Thread(target=produce, args=(first,)) for first in (0, 100)]
    for thread in (*consumers, *producers):
        thread.start()
    for thread in producers:
        thread.join()
    dps.data.queue(server, "many").close()
    for thread in consumers:
        thread.join(20)
    assert sorted([n for own in got for n in own]) == [*range(40), *range(100, 140)]
    for own in got:
        assert [n for n in own if n < 100] == sorted(n for n in own if n < 100)


def test_closing_wakes_who_waits_with_an_item(server: dps.Server) -> None:
    told: list[BaseException] = []
    first = dps.data.queue(server, "closed", capacity=1)
    first.put(1)

    def put() -> None:
        try:
            dps.data.queue(server, "closed").put(2)
        except dps.QueueClosed as error:
            told.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    runtime().sleep(0.2)
    first.close()
    thread.join(10)
    assert str(told[0]) == "queue 'closed' is closed; the item was not put"
    assert first.get() == 1
    with pytest.raises(dps.QueueClosed, match="queue 'closed' is closed and empty"):
        first.get()


def test_bad_use_is_told_in_one_line(server: dps.Server) -> None:
    queue = dps.data.queue(server, "small", capacity=2)
    assert queue.capacity == dps.data.queue(server, "small").capacity == 2
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: dps.data.queue(server, "small", capacity=3), dps.ConfigError, "got capacity 3, it was made with 2"),
        (
            lambda: dps.data.queue(server, "x", capacity=0),
            dps.ConfigError,
            "got capacity 0, wanted a whole number from 1",
        ),
        (lambda: dps.data.queue(server, "x", 2.5), dps.ConfigError, "got capacity 2.5, wanted a whole number from 1"),
        (lambda: dps.data.queue(server, 7), dps.ConfigError, "and 7, wanted this process's dps.Server and a name"),
        (lambda: dps.data.queue(server.target, "x"), dps.ConfigError, "wanted this process's dps.Server"),
        (lambda: dps.data.queue(server, "x", timeout=-1), dps.ConfigError, "got timeout -1, wanted seconds above 0"),
        (lambda: dps.data.queue(server, "x", timeout=np.nan), ValueError, "timeout: got nan, wanted seconds"),
        (lambda: dps.data.queue(server, ""), dps.ConfigError, "got a name of 0 characters, wanted 1 to 200"),
        (lambda: dps.data.queue(server, "\ud800"), dps.ConfigError, "wanted this process's dps.Server and a name"),
        (lambda: dps.data.queue(server, "x", capacity=10**30), dps.ConfigError, "got capacity 1e.30, wanted at most"),
        (lambda: queue.put("\ud800"), TypeError, r"text with '.ud800', half a surrogate pair, cannot travel"),
        (lambda: queue.put({"a": 10**40}), TypeError, "a whole number of more than 64 bits cannot travel"),
        (lambda: queue.put([{np.int64(3): 1}]), TypeError, "a int64 cannot travel between tasks as the key"),
        (lambda: queue.put({(1, np.float32(2)): 1}), TypeError, "a tuple cannot travel between tasks as the key"),
        (lambda: queue.put(IntEnum("E", "a").a), TypeError, "a E cannot travel between tasks"),  # type: ignore[attr-defined]
        (lambda: queue.put(object()), TypeError, "a object cannot travel between tasks"),
        (lambda: queue.put(np.array(["text"])), TypeError, "wanted an array of numbers"),
        (lambda: queue.get(timeout=0.1), dps.DeadlineExceeded, "worker:0: get: queue 'small' is empty; nobody has put"),
    ]
    for call, kind, text in wrong:
        with pytest.raises(kind, match=text) as caught:
            call()
        assert "\n" not in str(caught.value)
    queue.leave()
    with pytest.raises(dps.ConfigError, match="it was left; make another one"):
        queue.put(1)


def test_a_get_without_time_takes_what_is_there(server: dps.Server) -> None:
    queue = dps.data.queue(server, "at once", capacity=2)
    queue.put(1, timeout=0)
    queue.put(2, timeout=0)
    with pytest.raises(dps.DeadlineExceeded, match=r"queue 'at once' is full \(2 of 2 items\)"):
        queue.put(3, timeout=0)
    assert [queue.get(timeout=0), queue.get(timeout=0)] == [1, 2]
    began = runtime().now()
    with pytest.raises(dps.DeadlineExceeded, match="queue 'at once' is empty; the last item was put by worker:0"):
        queue.get(timeout=0)
    assert runtime().now() - began < 1.5


def test_another_thread_at_the_same_queue_is_told_so(server: dps.Server) -> None:
    queue = dps.data.queue(server, "threads")
    thread = threading.Thread(target=lambda: queue.put(queue.get()))
    thread.start()
    runtime().sleep(0.2)
    with pytest.raises(dps.ConfigError, match="another thread uses it; make one for each"):
        queue.size()
    other = dps.data.queue(server, "threads")
    other.put(1)
    thread.join(10)
    assert other.get() == 1


def test_a_form_that_does_not_fit_its_arrays_is_refused() -> None:
    form, arrays = pack([np.zeros(2), np.zeros(3)])
    with pytest.raises(dps.ProtocolError, match="a value names an array that is not among its 1 arrays"):
        unpack(form, arrays[:1])
    with pytest.raises(dps.ProtocolError, match="cannot be read"):
        unpack(b"\xc1", [])
