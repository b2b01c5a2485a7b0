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
        assert calls.call(call(client, 1), "a:1", "asker") is None
    first = calls.take()
    assert first is not None and first.client == 1 and calls.take() is None
    assert calls.ended(returned(1)) is calls.clients[1]
    second = calls.take()
    assert second is not None and second.client == 2


def test_a_call_that_comes_again_runs_once_and_is_answered_to_the_last_asker() -> None:
    calls = CallQueue()
    calls.call(call(1, 1), "a:1", "first")
    calls.take()
    assert calls.call(call(1, 1), "a:1", "again") is None and calls.waits(1, 1)
    client = calls.ended(returned(1))
    assert client is not None and client.asker == "again" and calls.take() is None
    assert calls.call(call(1, 1), "a:1", "later") == returned(1) == calls.ask(1, 1, "and later")


def test_a_higher_number_ends_the_interest_in_those_before() -> None:
    calls = CallQueue()
    calls.call(call(1, 1), "a:1", "x")
    calls.take()
    calls.call(call(1, 2), "a:1", "x")
    calls.call(call(1, 3), "a:1", "x")
    assert calls.ended(returned(1)) is None, "its value is nobody's"
    newest = calls.take()
    assert newest is not None and newest.number == 3
    assert calls.call(call(1, 2), "a:1", "late copy") is None and not calls.waits(1, 2)


def test_a_worker_that_was_started_again_says_that_it_does_not_know_the_call() -> None:
    calls = CallQueue()
    assert calls.ask(1, 4, "x") == CallMissing(4)
    calls.call(call(1, 4), "a:1", "x")
    assert calls.ask(1, 5, "x") == CallMissing(5) and calls.ask(1, 4, "x") is None


def test_what_a_client_has_asked_for_goes_with_it() -> None:
    calls = CallQueue()
    calls.call(call(1, 1), "a:1", "x")
    calls.call(call(2, 1), "b:1", "x")
    calls.take()
    assert calls.at("b:1") == [2] and calls.leave(2) and not calls.leave(2)
    assert calls.leave(1) and calls.ended(returned(1)) is None and calls.take() is None
