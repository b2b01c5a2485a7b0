"""Where the chief dials those who register, and what becomes of one that it cannot reach."""

from __future__ import annotations

import pytest

import dps
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.chief.cluster import MOST_DIALLED, REACH_S, Reachability
from dps.errors import ConfigError, Unavailable
from dps.messages.runs import CHIEF, Register, Registered
from dps.transport.current import runtime
from tests.chief.led import Led


def test_an_address_is_given_up_after_ten_seconds_without_a_connection_and_never_once_it_was_reached() -> None:
    reaching = Reachability()
    for address in ("a:1", "b:2"):
        reaching.begin_trying(address, 100.0)
    reaching.mark_reached("b:2")
    reaching.begin_trying("b:2", 101.0)
    reaching.begin_trying("a:1", 105.0)  # registers again: the time goes on
    now = 100.0 + REACH_S
    for address, at in (("a:1", now - 0.1), ("b:2", now), ("never:3", now)):
        reaching.check_reached(address, at, "chief:1", "ps:0")
    with pytest.raises(Unavailable, match="^ps:0 cannot be reached by the chief at chief:1: nobody answers at a:1"):
        reaching.check_reached("a:1", now, "chief:1", "ps:0")


def test_no_more_addresses_are_remembered_than_a_bound() -> None:
    reaching = Reachability()
    for number in range(MOST_DIALLED + 10):
        reaching.begin_trying(f"a:{number}", 0.0)
        reaching.mark_reached(f"b:{number}")
    assert len(reaching._tried_since) == len(reaching._reached) == MOST_DIALLED


def test_the_problem_names_both_the_address_the_port_and_what_to_try() -> None:
    reaching = Reachability(frozenset({"named:5000"}))
    for address in ("10.0.0.2:5001", "named:5000"):
        reaching.begin_trying(address, 0.0)
    text = reaching.problem("10.0.0.2:5001", "10.0.0.1:2220", "ps:0")
    for part in ("chief at 10.0.0.1:2220", "10.0.0.2:5001, from where it came", "open port 5001", "ps:0's", "--bind"):
        assert part in text
    assert "which the cluster spec names" in reaching.problem("named:5000", "10.0.0.1:2220", "ps:0")
    reaching.mark_reached("named:5000")
    assert reaching.problem("named:5000", "10.0.0.1:2220", "ps:0") == ""


def test_a_ps_that_the_chief_cannot_reach_is_refused_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    led = Led(ps=1)
    led.desk.exposed = True
    led.register("ps", 0)
    led.lose("ps", 0)
    assert "ps:0 cannot be reached by the chief at 127.0.0.1:1: nobody answers at ps:0" in caplog.text
    led.desk.pass_time(REACH_S)
    led.register("ps", 0)
    refused = led.answered("ps:0")
    assert isinstance(refused, Unavailable) and "ps:0 cannot be reached" in str(refused)


def test_a_message_cannot_make_the_chief_dial_another_host_than_its_own() -> None:
    with dps.Server(None, "chief", 0, bind="127.0.0.1:0") as chief:
        caller = Caller(runtime(), "somebody", chief.home().keys)
        try:
            to = Ref(chief.address, CHIEF)
            caller.connect(chief.address, b"ticket")
            answer = caller.ask(to, Register("worker", 0, "10.9.9.9:80", 1, 0, {}), 10.0)
            assert isinstance(answer, Registered)
            assert chief._hosted._actor is not None
            known = chief._hosted._actor.cluster.workers.known[0]
            assert (known.address, known.told) == ("127.0.0.1:80", "10.9.9.9:80")
            with pytest.raises(ConfigError, match="address"):
                caller.ask(to, Register("worker", 1, "nonsense", 1, 0, {}), 10.0)
        finally:
            caller.close()
