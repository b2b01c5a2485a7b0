"""A socket that libzmq closes late, as on a busy machine, ends no other socket of the process."""

from __future__ import annotations

import pytest

from dps.transport.endpoint import Delivery
from dps.transport.runtime import RealRuntime
from dps.transport.sockets import listener


def test_endpoints_work_on_after_one_was_closed_later_than_its_listener_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_CLOSE_WAIT_MS", 0)
    runtime = RealRuntime()
    for _ in range(50):
        runtime.endpoint("127.0.0.1:0").close()
    there, here = runtime.endpoint("127.0.0.1:0"), runtime.endpoint(None)
    here.send(there.address, b"header", [])
    end = runtime.now() + 20
    while not isinstance(found := there.receive(0.1), Delivery):
        here.receive(0.1)  # what was sent waits for the connection
        assert runtime.now() < end, "libzmq's thread is blocked"
    assert found.header == b"header"
    here.close()
    there.close()
