"""What `dps doctor --chief` says of the way to a chief: one that is well, and each that is not."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

import dps
from dps import cli
from dps.chief import operators as examiner
from dps.monitor import way
from dps.monitor.doctor import Finding


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "ANSWER_S", 0.5)
    monkeypatch.setattr(way, "MEASURED_S", 0.05)


@pytest.fixture
def chief(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(way, "ANSWER_S", 10.0)  # it answers, though late on a busy machine
    with dps.Server(None, "chief", 0, bind="127.0.0.1:0") as server:
        yield server.address


def found(chief: str, environ: dict[str, str] | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in way.ConnectionCheck(chief, environ or {}).run_checks()}


def test_of_a_chief_that_is_well_every_line_is_there_and_none_is_wrong(
    chief: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = found(chief)
    assert list(lines) == ["name", "port", "versions", "clock", "round trip", "bandwidth", "machine", "keys"]
    assert not any(line.wrong or line.advice for line in lines.values())
    assert "tasks share memory" in lines["machine"].found and "ms (median of 20)" in lines["round trip"].found
    assert cli.main(["doctor", "--chief", chief, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][2]["found"] == f"dps {dps.__version__}, here and there"


def test_each_ps_is_a_line_that_says_whether_it_can_be_reached_from_here(chief: str) -> None:
    held, closed = _port(listens=False)
    with (
        held,
        dps.Server(None, "ps", 0, chief=chief) as ps,
        dps.Server(None, "ps", 1, chief=chief, advertise=closed) as far,
    ):
        for server in (ps, far):
            server.wait_joined(server.runtime.now() + 30)
        lines = found(chief)
    assert not lines["ps:0"].wrong and lines["ps:0"].found == f"{ps.address} can be reached from here"
    assert lines["ps:1"].wrong and lines["ps:1"].found.startswith(f"{closed}, where it told the chief that it is: port")
    assert f"open port {closed.rpartition(':')[2]}" in lines["ps:1"].advice


def test_another_version_is_wrong(chief: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "version", lambda: "9.9")
    line = found(chief)["versions"]
    assert line.wrong and line.found == f"dps {dps.__version__} here, 9.9 there" and "same dps" in line.advice


def test_a_clock_that_differs_is_advice(chief: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "CLOCK_S", -1.0)
    line = found(chief)["clock"]
    assert not line.wrong and "set-ntp" in line.command


def test_without_shared_memory_sockets_are_named(chief: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "proof", lambda *_: b"")
    assert "another one than here, or another container" in found(chief)["machine"].found


def _port(listens: bool) -> tuple[socket.socket, str]:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    if listens:
        made.listen(1)
    return made, f"127.0.0.1:{made.getsockname()[1]}"


def test_a_closed_port_is_wrong_and_says_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    held, address = _port(listens=False)
    with held:
        assert cli.main(["doctor", "--chief", address]) == 1
    out = capsys.readouterr().out
    assert "wrong: port" in out and "Connection refused" in out and "firewall" in out


def test_a_port_of_somebody_else_is_wrong() -> None:
    held, address = _port(listens=True)
    with held:
        assert "is not dps" in found(address)["port"].found and found(address)["port"].wrong


def test_a_node_that_is_no_chief_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from dps.actors.node import Node
    from dps.transport.current import runtime

    monkeypatch.setenv("DPS_TRUSTED_NETWORK", "1")  # the node has no keys
    node = Node(runtime(), "127.0.0.1:0", "ps:0")
    node.start()
    try:
        line = found(node.address)["versions"]
        assert line.wrong and "hosts no 'examiner'" in line.found
    finally:
        node.stop()
        node.join(5.0)


def test_a_malformed_address_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--chief", "nonsense"]) == 2
    assert "got 'nonsense', wanted HOST:PORT" in capsys.readouterr().err


def test_beyond_this_machine_the_keys_say_whether_the_network_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "is_loopback", lambda host: False)
    with dps.Server(None, "chief", 0, bind="127.0.0.1:0") as server:
        assert found(server.address)["keys"].command == "export DPS_TRUSTED_NETWORK=1"
        assert "trusted network" in found(server.address, {"DPS_TRUSTED_NETWORK": "1"})["keys"].found


def test_compression_is_advised_where_it_pays_with_the_figures() -> None:
    assert way.compression_advice(2e9, 2e9) == ""
    said = way.compression_advice(12.5e6, 12.5e6)
    assert said == (
        "a push of 100 MB takes 8.00 s and with compression=dps.compress.Int8() 2.12 s; "
        "a pull 8.00 s and with pull_compression=dps.compress.Bfloat16() 4.03 s"
    )
    assert way.compression_advice(2e9, 12.5e6).startswith("a pull 8.00 s")
