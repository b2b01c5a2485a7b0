"""Machines with slow links on one host: network namespaces around a switch, and `tc tbf` on each limited link.

    with star({"ps:0": 100, "worker:0": 0}, "cubic") as machines:
        subprocess.run([*machines["worker:0"].enter, "ping", machines["ps:0"].address])

Linux, as root, with iproute2. Each machine is a namespace with one interface, `cable`, which ends at a bridge in a
namespace of its own. A link with a rate is limited both ways: what leaves the machine on its own end, and what goes to
it on the switch's. So several machines that send to one share its link, as at the network card of a real one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CABLE = "cable"
NETWORK = ipaddress.ip_network("10.78.0.0/24")
MOST = 0.955
"""Which part of a link's rate TCP can carry, with frames of 1,500 bytes: the rest is headers."""
_made = itertools.count()


class NoLinks(Exception):
    """This process may not make network namespaces with limited links, or has no tool for it. Says so in one line."""


@dataclass(frozen=True)
class Machine:
    """A network namespace."""

    space: str
    address: str

    @property
    def enter(self) -> list[str]:
        """What a command line begins with to run in it."""
        return ["ip", "netns", "exec", self.space]


@contextlib.contextmanager
def star(
    rates: Mapping[str, int], congestion: str = "", queue_ms: int = 100, burst_kb: int = 128
) -> Iterator[dict[str, Machine]]:
    """The machines by name; at the end they are gone.

    Args:
        rates: Each machine's link in Mbit/s, each way; 0: no limit.
        congestion: What TCP uses there: cubic, bbr, ...; "": what this host uses.
        queue_ms: How long bytes wait at most before a limited link; more of them are dropped.
        burst_kb: How much passes a limited link at once after a pause. From 64 on the kernel counts large blocks with
            one header, not frames of 1,500 bytes.

    Raises:
        NoLinks: No root, no iproute2, or a kernel that refuses one of its commands.
    """
    check_tools()
    stem = f"dps-{os.getpid()}-{next(_made)}"
    switch, hosts = f"{stem}-switch", NETWORK.hosts()
    machines = {
        name: Machine(f"{stem}-{number}", str(host))
        for number, (name, host) in enumerate(zip(rates, hosts, strict=False))
    }
    spaces = [switch, *(machine.space for machine in machines.values())]
    try:
        for space in spaces:
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, (name, machine) in enumerate(machines.items()):
            _plug(machine, switch, f"port{number}", congestion)
            if rates[name]:
                limit = ["rate", f"{rates[name]}mbit", "burst", f"{burst_kb}kb", "latency", f"{queue_ms}ms"]
                for space, device in ((machine.space, CABLE), (switch, f"port{number}")):
                    run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)
        yield machines
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def check_tools() -> None:
    """Raises NoLinks unless this process may try: root, with iproute2."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise NoLinks("network namespaces need root and iproute2 (ip, tc)")


def run(*command: str) -> None:
    """Run a command that has to succeed. Raises NoLinks with what it said."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoLinks(
            f"network namespaces need root and iproute2; {' '.join(command)}: {' '.join(done.stderr.split())}"
        )


def _plug(machine: Machine, switch: str, port: str, congestion: str) -> None:
    """Connect a machine with a port of the switch."""
    ends = ["link", "add", port, "netns", switch, "type", "veth", "peer", "name", CABLE, "netns", machine.space]
    run("ip", *ends)
    run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    run("ip", "-n", machine.space, "address", "add", f"{machine.address}/{NETWORK.prefixlen}", "dev", CABLE)
    run("ip", "-n", machine.space, "link", "set", CABLE, "up")
    if congestion:
        route = [str(NETWORK), "dev", CABLE, "src", machine.address, "congctl", congestion]
        run("ip", "-n", machine.space, "route", "replace", *route)


def on_the_cable() -> tuple[int, int]:
    """Bytes that have left the namespace of this process, and that have come. Raises OSError in no such namespace."""
    folder = Path("/sys/class/net") / CABLE / "statistics"
    with contextlib.suppress(OSError):
        return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == CABLE:
            fields = counts.split()
            return int(fields[8]), int(fields[0])
    raise OSError("there is no cable")
