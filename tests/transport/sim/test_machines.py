"""Machines whose cores and network cards processes wait for. All times are worked out from the figures given."""

from __future__ import annotations

from math import inf

import pytest

from dps.transport.current import runtime
from dps.transport.sim import Compute, Handling, Machines, Network, World
from tests.transport.sim.worlds import PS, delivery

INSTANT = Network(latency_s=0.0, jitter=0.0, bytes_per_s=1e15)


def computed(machines: Machines | None, processes: int, steps: int = 1) -> list[float]:
    """When some processes had computed steps of a second."""
    ended: list[float] = []

    def main() -> int:
        for _ in range(steps):
            runtime().compute()
            ended.append(world.now)
        return 0

    with World(compute=Compute(1.0), machines=machines) as world:
        for number in range(processes):
            world.process(f"worker:{number}", main)
        world.run()
    return ended


def exchanged(machines: Machines, clients: int, nbytes: int = 1000, network: Network = INSTANT) -> list[float]:
    """When each client that sent `nbytes` and a header of one byte to ps:0 at second 1 has its answer of one byte."""
    answered: list[float] = []

    def serve() -> int:
        endpoint = runtime().endpoint(PS)
        for _ in range(clients):
            endpoint.send(delivery(endpoint).route, b"!")
        return 0

    def use() -> int:
        endpoint = runtime().endpoint()
        endpoint.connect(PS)
        endpoint.receive(60.0)
        runtime().sleep(1.0 - world.now)
        endpoint.send(PS, b"?", [bytes(nbytes)])
        delivery(endpoint)
        answered.append(world.now)
        return 0

    with World(network=network, machines=machines, clock_offsets=False) as world:
        world.process("ps:0", serve)
        for number in range(clients):
            world.process(f"worker:{number}", use)
        world.run()
        assert [process.error for process in world.processes.values()] == [None] * (clients + 1)
    return answered


def test_without_machines_everybody_computes_at_once() -> None:
    assert computed(None, 4) == [1.0] * 4


def test_processes_of_one_machine_take_turns_on_its_cores() -> None:
    assert computed(Machines(cores=2, shared=True), 5) == [1.0, 1.0, 2.0, 2.0, 3.0]


def test_processes_on_machines_of_their_own_do_not_wait_for_each_other() -> None:
    assert computed(Machines(cores=1), 5) == [1.0] * 5


def test_who_sends_and_who_receives_pays_for_each_message_and_each_byte() -> None:
    costs = {
        "worker": Handling(sent_s=0.1, sent_byte_s=0.0001, received_s=0.01),
        "ps": Handling(received_s=0.3, received_byte_s=0.0002, sent_s=0.05),
    }
    found = exchanged(Machines(handling=costs), 1, nbytes=999)
    assert found == [pytest.approx(1.0 + (0.1 + 0.1) + (0.3 + 0.2) + 0.05 + 0.01, abs=1e-6)]


def test_a_task_may_cost_what_its_job_does_not() -> None:
    machines = Machines(handling={"ps": Handling(received_s=9.0), "ps:0": Handling(received_s=0.5)})
    assert exchanged(machines, 1) == [pytest.approx(1.5, abs=1e-6)]


def test_messages_wait_for_the_task_that_handles_them() -> None:
    found = exchanged(Machines(handling={"ps": Handling(received_s=0.5)}), 3)
    assert found == [pytest.approx(at, abs=1e-6) for at in (1.5, 2.0, 2.5)]


def test_a_network_card_is_shared_by_all_its_links() -> None:
    """3 x 1,001 bytes at 1,001 bytes a second; the answers pass the other direction meanwhile."""
    found = exchanged(Machines(bytes_per_s=1001.0), 3)
    assert found == [pytest.approx(at, abs=0.01) for at in (2.0, 3.0, 4.0)]


def test_links_of_a_card_take_turns() -> None:
    """Ten messages of 1 MB at 10 MB/s: all come in the end, not one after the other. Shares differ by up to three."""
    found = exchanged(Machines(bytes_per_s=1e7), 10, nbytes=1_000_000)
    assert max(found) == pytest.approx(2.0, rel=0.01)
    assert min(found) > 1.3


def test_tasks_of_one_machine_may_have_cards_of_their_own() -> None:
    """In network namespaces. Of 1,001 bytes to a ps with 1,001 bytes a second each takes a second."""
    found = exchanged(Machines(shared=True, cards={"ps:0": 1001.0}), 2)
    assert found == [pytest.approx(at, abs=0.01) for at in (2.0, 3.0)]


def test_what_another_thread_does_beside_delays_nobody_but_takes_a_core() -> None:
    costs = {"ps": Handling(received_s=0.5, beside=0.4)}
    assert exchanged(Machines(cores=2, handling=costs), 1) == [pytest.approx(1.3, abs=1e-6)]
    assert exchanged(Machines(cores=1, handling=costs), 1) == [pytest.approx(1.5, abs=1e-6)]


def test_on_one_machine_no_network_card_is_passed() -> None:
    assert exchanged(Machines(shared=True, bytes_per_s=1.0), 2) == [pytest.approx(1.0, abs=1e-6)] * 2


def test_a_killed_process_gives_up_its_turn() -> None:
    ended: list[str] = []

    def main(name: str) -> int:
        runtime().compute()
        ended.append(f"{name} at {world.now}")
        return 0

    with World(compute=Compute(1.0), machines=Machines(cores=1, shared=True)) as world:
        for name in ("worker:0", "worker:1", "worker:2"):
            world.process(name, lambda name=name: main(name))
            world.run(until_s=world.now + 1e-6)
        world.at(0.5, lambda: world.kill("worker:1"))
        world.run()
    assert [line.split(" at ")[0] for line in ended] == ["worker:0", "worker:2"]
    assert world.now == pytest.approx(2.0, abs=1e-5)
    assert world.core_s("worker:0") == pytest.approx(2.0)


def test_who_has_rested_takes_longer() -> None:
    """Steps of 1 s after rests of 0, 1, 2, 3 and 9 s: nothing more up to 1 s, 0.5 s after 3, half of that after 2."""
    ended: list[float] = []

    def main() -> int:
        for rest_s in (0.0, 1.0, 2.0, 3.0, 9.0):
            runtime().sleep(rest_s)
            began = world.now
            runtime().compute()
            ended.append(world.now - began)
        return 0

    with World(compute=Compute(1.0), machines=Machines(rested=((1.0, 0.0), (3.0, 0.5)))) as world:
        world.process("worker:0", main)
        world.run()
    assert ended == [pytest.approx(took) for took in (1.0, 1.0, 1.25, 1.5, 1.5)]


@pytest.mark.parametrize(("step_s", "turns"), [(1e-3, "AAABBBAB"), (2e-3, "AABBAABB"), (4e-3, "ABABABAB")])
def test_a_process_keeps_its_core_for_a_slice(step_s: float, turns: str) -> None:
    """3 ms: three steps of 1 ms, or two of 2 ms, at a time."""
    found = ""

    def main(name: str) -> int:
        nonlocal found
        for _ in range(4):
            runtime().compute()
            found += name
        return 0

    with World(compute=Compute(step_s), machines=Machines(cores=1, shared=True)) as world:
        world.process("A", lambda: main("A"))
        world.run(until_s=1e-9)
        world.process("B", lambda: main("B"))
        world.run()
    assert found == turns


def test_what_nobody_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="cores=0"):
        Machines(cores=0)
    with pytest.raises(ValueError, match="wanted rising times"):
        Machines(rested=((2.0, 0.0), (1.0, 0.5)))
    with pytest.raises(ValueError, match="wanted 0 or more"):
        Handling(received_s=-1.0)
    with pytest.raises(ValueError, match="for beside 0 to 1"):
        Handling(beside=1.5)
    with pytest.raises(ValueError, match="cards="):
        Machines(cards={"ps": 0.0})
    with pytest.raises(ValueError, match="update_byte_s"):
        Machines(update_byte_s=(-1.0,))
    assert Machines().bytes_per_s == inf
