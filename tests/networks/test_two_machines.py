"""A chief and a ps in one network namespace, workers in another: training, a pulled cable, wrong addresses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dps.transport.keys import files as key_files
from tests.networks.namespaces import Networks, NoNamespaces, says

pytestmark = pytest.mark.nightly

LONG = pytest.mark.skipif(not os.environ.get("DPS_NETWORKS"), reason="make networks runs it: it takes long")
TRAIN = str(Path(__file__).with_name("train.py"))
V4, V6 = "10.77.0.1:2220", "[fd77::1]:2220"


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Networks]:
    """`make networks` sets DPS_NETWORKS=1: then it fails where it would skip."""
    try:
        made = Networks(tmp_path)
    except NoNamespaces as error:
        if os.environ.get("DPS_NETWORKS"):
            raise
        pytest.skip(str(error))
    yield made
    made.close()


def begin(networks: Networks, chief: str, bind: str, *ps: str, name: str = "") -> tuple[Path, Path]:
    """The outputs of the chief and the ps. The chief listens when this returns."""
    log = networks.role("one", "chief", "--bind", bind, "--chief", chief, "--workers", "2", name=name)
    says(log, "dps chief at")
    return log, networks.role("one", "ps:0", "--chief", chief, *ps, name=name)


def work(networks: Networks, chief: str, *arguments: str, side: str = "two", pids: bool = False) -> list[Path]:
    flags = ["--chief", chief, "--program", TRAIN, "--", *arguments]
    return [networks.role(side, f"worker:{task}", *flags, pids=pids) for task in range(2)]


def results(logs: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(says(log, "RESULT ").partition("RESULT ")[2]) for log in logs]


def test_a_synchronous_run_over_a_network_has_the_bits_of_one_machine(networks: Networks) -> None:
    begin(networks, V4, "0.0.0.0:2220")
    logs = work(networks, V4, "sync", "20", "0", "20", "40")
    one, two = results(logs)
    assert set(networks.wait(40.0)) == {0}
    assert one["bits"] == two["bits"] and one["step"] == 20 and one["lanes"] == [False]

    here = "127.0.0.1:2299"
    networks.role("one", "chief", "--bind", here, "--workers", "2")
    networks.role("one", "ps:0", "--chief", here)
    alone = results(work(networks, here, "sync", "20", "0", "20", "40", side="one"))
    assert alone[0]["lanes"] == [True], "on one machine they share memory"
    assert {result["bits"] for result in alone} == {one["bits"]}


@LONG
def test_asynchronous_over_ipv6_with_an_interface_a_range_of_ports_and_processes_of_their_own(
    networks: Networks,
) -> None:
    chief, ps = begin(networks, V6, "[::]:2220", "--bind", "[::]", "--ports", "5000-5001")
    logs = work(networks, V6, "async", "20", "0", "20", "40", pids=True)
    found = results(logs)
    assert set(networks.wait(40.0)) == {0}
    assert [result["acknowledged"] for result in found] == [20, 20] and max(r["count"] for r in found) == 40.0
    assert [result["lanes"] for result in found] == [[False], [False]]
    assert "[fd77::1]:5000" in says(ps, "dps ps:0 at")
    for log in (chief, ps, *logs):
        assert log.read_text().count("plain sockets without keys (--trusted-network)") == 1


@pytest.mark.parametrize("update", ["async", pytest.param("sync", marks=LONG)])
def test_a_cable_that_is_pulled_for_five_seconds_loses_nothing_and_the_waits_name_who_is_away(
    networks: Networks, update: str
) -> None:
    begin(networks, V4, V4)
    logs = work(networks, V4, update, "60", "0.05", "2.0", "40")
    for log in logs:
        says(log, "acknowledged 5")
    networks.cable(up=False)
    time.sleep(5.0)
    networks.cable(up=True)
    found = results(logs)
    assert set(networks.wait(40.0)) == {0}
    acknowledged = [result["acknowledged"] for result in found]
    count, step = (max(result[name] for result in found) for name in ("count", "step"))
    assert acknowledged == [60, 60] and count == (120.0 if update == "async" else step)
    late = [text for result in found for text in result["late"]]
    assert any("ps:0" in text for text in late) and all("ps:0" in text or "worker:" in text for text in late), late


def test_a_wrong_advertised_address_is_an_error_that_names_both(networks: Networks) -> None:
    """Nobody is at the first ps's port. The chief reaches the second one where it comes from, and no worker does."""
    chief, ps = begin(networks, V4, V4, "--advertise", "10.77.0.9:5999")
    other = "10.77.0.1:2230"
    begin(networks, other, other, "--bind", "0.0.0.0:5998", "--advertise", "10.77.0.9", name="other")
    flags = ["--chief", other, "--program", TRAIN, "--", "async", "1", "0", "2", "4"]
    worker = networks.role("two", "worker:0", *flags)

    line = says(worker, "cannot reach ps:0")
    assert (
        "worker:0: " in line
        and "nobody answers at 10.77.0.9:5998" in line
        and "open port 5998" in line
        and "--advertise" in line
    )
    line = says(ps, "cannot be reached by the chief")
    assert line.startswith("dps: ps:0 cannot be reached by the chief at 10.77.0.1:2220")
    assert "nobody answers at 10.77.0.1:5999" in line and "open port 5999 in the firewall" in line
    says(chief, "ps:0 cannot be reached by the chief at 10.77.0.1:2220")


def test_with_keys_two_machines_train_and_who_has_others_gets_no_connection(networks: Networks, tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("keys", "two", "other")}
    key_files.new(folders["keys"])
    key_files.new(folders["other"])
    key_files.export(folders["keys"], ["worker"], folders["two"])
    here, there, other = (("--chief", V4, "--keys", folders[name]) for name in ("keys", "two", "other"))
    log = networks.role("one", "chief", "--bind", "0.0.0.0:2220", "--workers", "2", *here, trusted=False)
    says(log, "dps chief at")
    ps = networks.role("one", "ps:0", *here, trusted=False)
    program = ("--program", TRAIN, "--", "sync", "20", "0", "20", "40")
    stranger = networks.role("two", "worker:0", *other, *program, trusted=False, name="stranger")
    assert "has another key than the chief of" in says(stranger, "dps: ")
    workers = [networks.role("two", f"worker:{task}", *there, *program, trusted=False) for task in range(2)]
    one, two = results(workers)
    codes = networks.wait(40.0)
    assert codes[2] == 5 and set(codes[:2] + codes[3:]) == {0}
    assert one["bits"] == two["bits"] and one["step"] == 20 and one["lanes"] == [False]
    for each in (log, ps, *workers):
        assert "plain sockets" not in each.read_text()


def begin_with_keys(networks: Networks, folder: str, *flags: str) -> list[Path]:
    """The outputs of a chief and a ps with new keys, on side one. The chief listens when this returns."""
    key_files.new(folder)
    here = ("--chief", V4, "--keys", folder)
    log = networks.role("one", "chief", "--bind", "0.0.0.0:2220", *here, *flags, trusted=False)
    says(log, "dps chief at")
    return [log, networks.role("one", "ps:0", *here, trusted=False)]


def token(networks: Networks, folder: str, to: Path, *flags: str) -> str:
    """Has an operator on side one make a join token; returns the --join of the file that it is in."""
    made = networks.command("one", "-m", "dps.cli", "token", "--chief", V4, "--keys", folder, *flags)
    assert made.startswith("dps1-") and len(made.split()) == 1
    to.write_text(made)
    to.chmod(0o600)
    return f"@{to}"


def test_with_nothing_but_a_token_workers_train_on_mnist_and_the_bits_are_those_of_one_machine(
    networks: Networks, tmp_path: Path
) -> None:
    keys = str(tmp_path / "keys")
    servers = begin_with_keys(networks, keys, "--workers", "2")
    joins = token(networks, keys, tmp_path / "token", "--uses", "2")
    program = ("--program", TRAIN, "--", "sync", "20", "0", "20", "40", "mnist")
    workers = [networks.start("two", f"w{n}", "-m", "dps.role", "--join", joins, *program, trusted=False) for n in "01"]
    one, two = results(workers)
    assert set(networks.wait(40.0)) == {0}
    assert one["bits"] == two["bits"] and one["step"] == 20 and one["count"] == 20 and one["lanes"] == [False]
    assert {one["task"], two["task"]} == {0, 1}
    for log in (*servers, *workers):
        assert "plain sockets" not in log.read_text()
    assert servers[0].read_text().count("has joined by a token, as a worker") == 2

    here = "127.0.0.1:2299"
    networks.role("one", "chief", "--bind", here, "--workers", "2", trusted=False)
    networks.role("one", "ps:0", "--chief", here, trusted=False)
    flags = ("--chief", here, *program)
    alone = results([networks.role("one", f"worker:{task}", *flags, trusted=False, name="alone") for task in range(2)])
    assert alone[0]["lanes"] == [True] and {result["bits"] for result in alone} == {one["bits"]}


def test_a_worker_that_only_knows_a_token_joins_late_and_loses_nothing_when_the_cable_is_pulled(
    networks: Networks, tmp_path: Path
) -> None:
    keys = str(tmp_path / "keys")
    begin_with_keys(networks, keys, "--workers", "2")

    def join(name: str, steps: int) -> Path:
        joins = token(networks, keys, tmp_path / name)
        program = ("--program", TRAIN, "--", "async", str(steps), "0.05", "2.0", "40", "mnist")
        return networks.start("two", name, "-m", "dps.role", "--join", joins, *program, trusted=False)

    logs = [join("first", 150)]
    says(logs[0], "acknowledged 5")
    logs.append(join("late", 60))
    says(logs[1], "acknowledged 5")
    networks.cable(up=False)
    time.sleep(5.0)
    networks.cable(up=True)
    found = results(logs)
    assert set(networks.wait(60.0)) == {0}
    assert [result["acknowledged"] for result in found] == [150, 60] and max(r["count"] for r in found) == 210.0
    late = [text for result in found for text in result["late"]]
    assert any("ps:0" in text for text in late), late


def test_without_trust_a_worker_is_refused_and_the_message_says_the_ways_out(networks: Networks) -> None:
    flags = ["--chief", V4, "--program", TRAIN, "--", "async", "1", "0", "2", "4"]
    log = networks.role("two", "worker:0", *flags, trusted=False)
    assert networks.wait(40.0) == [5]
    assert "10.77.0.2:0 listens beyond this machine without keys" in log.read_text()
