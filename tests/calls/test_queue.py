"""The calls that come to a worker: one runs, each client has one, and a result is kept until the client's next call."""

from __future__ import annotations

from dps.calls.actor import CallQueue
from dps.calls.messages import Call, CallMissing, Returned


def call(client: int, number: int) -> Call:
    return Call(client, f"client {client}", "a:1", number, "m:f", b"", [])


def returned(number: int) -> Returned:
    return Returned(number, b"value", ())


def test_one_call_runs_and_the_others_wait_in_their_order() -> None:
    calls = CallQueue()
    for client in (1, 2, 3):
        assert calls.add_call(call(client, 1), "a:1", "asker") is None
    first = calls.take_next()
    assert first is not None and first.client == 1 and calls.take_next() is None
    assert calls.record_outcome(returned(1)) is calls.clients[1]
    second = calls.take_next()
    assert second is not None and second.client == 2


def test_a_call_that_comes_again_runs_once_and_is_answered_to_the_last_asker() -> None:
    calls = CallQueue()
    calls.add_call(call(1, 1), "a:1", "first")
    calls.take_next()
    assert calls.add_call(call(1, 1), "a:1", "again") is None and calls.is_waiting(1, 1)
    client = calls.record_outcome(returned(1))
    assert client is not None and client.asker == "again" and calls.take_next() is None
    assert calls.add_call(call(1, 1), "a:1", "later") == returned(1) == calls.find_outcome(1, 1, "and later")


def test_a_higher_number_ends_the_interest_in_those_before() -> None:
    calls = CallQueue()
    calls.add_call(call(1, 1), "a:1", "x")
    calls.take_next()
    calls.add_call(call(1, 2), "a:1", "x")
    calls.add_call(call(1, 3), "a:1", "x")
    assert calls.record_outcome(returned(1)) is None, "its value is nobody's"
    newest = calls.take_next()
    assert newest is not None and newest.number == 3
    assert calls.add_call(call(1, 2), "a:1", "late copy") is None and not calls.is_waiting(1, 2)


def test_a_worker_that_was_started_again_says_that_it_does_not_know_the_call() -> None:
    calls = CallQueue()
    assert calls.find_outcome(1, 4, "x") == CallMissing(4)
    calls.add_call(call(1, 4), "a:1", "x")
    assert calls.find_outcome(1, 5, "x") == CallMissing(5) and calls.find_outcome(1, 4, "x") is None


def test_what_a_client_has_asked_for_goes_with_it() -> None:
    calls = CallQueue()
    calls.add_call(call(1, 1), "a:1", "x")
    calls.add_call(call(2, 1), "b:1", "x")
    calls.take_next()
    assert calls.clients_of("b:1") == [2] and calls.remove_client(2) and not calls.remove_client(2)
    assert calls.remove_client(1) and calls.record_outcome(returned(1)) is None and calls.take_next() is None
