"""`dps doctor --chief ADDRESS`: checks the connection from this machine to a chief, and reports what blocks it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

from dps.actors.caller import Caller, to_reach
from dps.actors.ref import Ref
from dps.chief.operators import EXAMINER, LONGEST_NBYTES, Examine, Examined, version
from dps.cluster.address import parse
from dps.cluster.identity import trusts_network
from dps.errors import DeadlineExceeded, DpsError, NotAuthenticated, Unavailable
from dps.messages.runs import CHIEF, AskCluster, ClusterIs
from dps.monitor.doctor import Finding
from dps.transport.current import keys_for, runtime
from dps.transport.message import Message
from dps.transport.shared_memory import ASKED, expected, marked
from dps.transport.sockets.addresses import greets, is_loopback, reaching, resolve

ANSWER_S = 3.0
"""How long each answer may take."""
ROUNDS = 20
MEASURED_S, MEASURED_NBYTES, AT_ONCE = 1.0, 64 << 20, 4
"""Bounds of the measurement of each direction, and how many messages of 1 MB are on their way at one time."""
EXAMPLE_NBYTES = 100_000_000
INT8_S, BFLOAT16_S = 4.7e-9, 1.2e-9
"""Seconds of packing and restoring an element on one core, with the residual (measured, docs/compression.md)."""
AT_MOST = 32
"""The most ps that are tried at one time."""
WORTH = 0.75
"""Compression is advised where it needs at most this part of the time: it costs some accuracy, or one setting."""
CLOCK_S = 1.0
"""Clocks need not agree; beyond this, times in logs and file names confuse people."""


class ConnectionCheck:
    """The checks of one chief, in order; one that fails ends them."""

    def __init__(self, chief: str, environ: dict[str, str]) -> None:
        self._environ = environ
        self._chief, self._address = chief, parse(chief)
        self._runtime = runtime()
        self.findings: list[Finding] = []

    def run_checks(self) -> list[Finding]:
        """All findings. Blocks, at most for some ten seconds. Raises UnknownHost for a name without an address."""
        if self._address.scheme == "tcp" and not (self._check_name() and self._check_port()):
            return self.findings
        try:
            caller = Caller(self._runtime, "dps doctor", keys_for(self._chief, "operator", "worker", "reader"))
        except DpsError as error:
            self._add_failure("keys", str(error), "the folder of keys of this machine is --keys, or DPS_KEYS")
            return self.findings
        try:
            if self._check_versions(caller):
                self._check_round_trip(caller)
                self._check_bandwidth(caller)
                self._check_machine(caller)
                self._check_ps(caller)
                self._check_keys()
        except NotAuthenticated as error:
            self._add_failure("keys", str(error), "give --keys the folder of this machine's keys")
        except DpsError as error:
            self._add_failure("answers", str(error), "look at the chief's log, and run this again")
        finally:
            caller.close()
        return self.findings

    def _add_failure(self, name: str, found: str, advice: str) -> bool:
        self.findings.append(Finding(name, found, advice, wrong=True))
        return False

    def _add_finding(self, name: str, found: str, advice: str = "", command: str = "") -> None:
        self.findings.append(Finding(name, found, advice, command))

    def _check_name(self) -> bool:
        host = self._address.host
        self._host = resolve(host)
        try:
            source = self._host if is_loopback(self._host) else reaching(self._host)
        except Unavailable as error:
            return self._add_failure("name", str(error), "give --chief the address that the chief prints at its start")
        self._add_finding("name", f"{host} is {self._host}, reached from {source}")
        return True

    def _check_port(self) -> bool:
        port = self._address.port
        try:
            zmtp = greets(self._host, port, ANSWER_S)
        except Unavailable as error:
            what = f"is the chief started there, on --bind 0.0.0.0:{port}? Is port {port} open in its firewall?"
            return self._add_failure("port", str(error), what)
        if not zmtp:
            return self._add_failure(
                "port", f"{port} is open, but the program that listens there is not dps", "look at the port's number"
            )
        self._add_finding("port", f"{port} is open")
        return True

    def _ask(self, caller: Caller, nbytes: int = 0) -> Examined:
        answer = caller.ask(self._to, Examine(nbytes, []), ANSWER_S)
        assert isinstance(answer, Examined)
        return answer

    @property
    def _to(self) -> Ref:
        return Ref(self._chief, EXAMINER)

    def _check_versions(self, caller: Caller) -> bool:
        try:
            before = self._runtime.wall()
            answer = self._ask(caller)
            began = self._runtime.wall()
        except DeadlineExceeded:
            return self._add_failure("answers", f"no chief answered for {ANSWER_S:g} s", "is that address a chief's?")
        except NotAuthenticated:
            raise
        except DpsError as error:
            return self._add_failure("versions", str(error), "install the same dps on all machines")
        if answer.version != version():
            found = f"dps {version()} here, {answer.version} there"
            return self._add_failure("versions", found, "install the same dps on all machines")
        self._add_finding("versions", f"dps {version()}, here and there")
        self._check_clock(answer.wall_s - (before + began) / 2)
        return True

    def _check_clock(self, ahead_s: float) -> None:
        found = f"{abs(ahead_s):.3f} s {'ahead' if ahead_s >= 0 else 'behind'} there"
        why = "times in logs and file names differ; nothing else depends on them"
        self._add_finding("clock", found, *((why, "timedatectl set-ntp true") if abs(ahead_s) > CLOCK_S else ()))

    def _check_round_trip(self, caller: Caller) -> None:
        took = []
        for _ in range(ROUNDS):
            began = self._runtime.now()
            self._ask(caller)
            took.append(self._runtime.now() - began)
        self._add_finding(
            "round trip", f"{1e3 * median(took):.2f} ms (median of {ROUNDS}), slowest {1e3 * max(took):.2f} ms"
        )

    def _check_bandwidth(self, caller: Caller) -> None:
        up, down = self._rate(caller, LONGEST_NBYTES, 0), self._rate(caller, 0, LONGEST_NBYTES)
        here = self._address.scheme != "tcp" or is_loopback(self._host)
        found = f"{up / 1e6:.0f} MB/s to the chief, {down / 1e6:.0f} MB/s from it"
        self._add_finding("bandwidth", found, "" if here else compression_advice(up, down))

    def _rate(self, caller: Caller, sent: int, got: int) -> float:
        """Bytes a second of messages that bring so many bytes there, and so many back."""
        arrays = (np.zeros(sent, np.uint8),) if sent else ()
        began = self._runtime.now()
        moved, deadline = 0, began + MEASURED_S

        def feed(answer: Message) -> bool:
            return isinstance(answer, Examined)

        message = Examine(got, [], arrays)
        on_the_way = [caller.start(self._to, message, feed, resend_s=ANSWER_S) for _ in range(AT_ONCE)]
        while on_the_way:
            if not caller.wait(on_the_way[:1], ANSWER_S):
                raise DeadlineExceeded(f"1 MB did not arrive within {ANSWER_S:g} s; is the network that slow?")
            moved += sent + got
            del on_the_way[0]
            if self._runtime.now() < deadline and moved < MEASURED_NBYTES:
                on_the_way.append(caller.start(self._to, message, feed, resend_s=ANSWER_S))
        return moved / (self._runtime.now() - began)

    def _check_machine(self, caller: Caller) -> None:
        own = marked(self._runtime)
        if own is None:
            return self._add_finding("machine", "sockets carry everything: no memory can be shared here")
        answer = caller.ask(self._to, Examine(0, own.name), ANSWER_S)
        assert isinstance(answer, Examined)
        if answer.proof == expected(own, ASKED, []):
            return self._add_finding("machine", f"the same as here ({answer.host}): tasks share memory")
        return self._add_finding("machine", f"another one than here, or another container ({answer.host}): sockets")

    def _check_ps(self, caller: Caller) -> None:
        """One line for each ps: whether it can be reached from here."""
        answer = caller.ask(Ref(self._chief, CHIEF), AskCluster(), ANSWER_S)
        assert isinstance(answer, ClusterIs)
        ps = {f"ps:{task}": address for task, address in answer.cluster["ps"].items()}
        with ThreadPoolExecutor(AT_MOST) as threads:  # each that cannot be reached takes ANSWER_S
            for (name, address), problem in zip(ps.items(), threads.map(unreachable, ps.values()), strict=True):
                if problem:
                    what = f"{address}, where it told the chief that it is: {problem}"
                    self._add_failure(name, what, to_reach(name, address))
                else:
                    self._add_finding(name, f"{address} can be reached from here")

    def _check_keys(self) -> None:
        if keys := self._environ.get("DPS_KEYS"):
            self._add_finding("keys", f"those of {keys}: every connection is encrypted")
        elif self._address.scheme != "tcp":
            self._add_finding("keys", "none: who may enter the socket's folder may connect")
        elif is_loopback(self._host) and not trusts_network(self._environ):
            self._add_finding("keys", "this user's own: other accounts of this machine cannot connect")
        elif trusts_network(self._environ):
            self._add_finding("keys", "none (trusted network): whoever reaches the tasks can change the run")
        else:
            why = "a task here is refused unless it gets --trusted-network, or this is set; better: dps keys new DIR"
            self._add_finding("keys", "none", why, "export DPS_TRUSTED_NETWORK=1")


def unreachable(address: str) -> str:
    """Why a node of dps cannot be reached from here; "" if it can. Blocks up to twice ANSWER_S."""
    told = parse(address)
    try:
        if told.scheme == "tcp" and not greets(resolve(told.host), told.port, ANSWER_S):
            return "the program that listens there is not dps"
    except Unavailable as error:
        return str(error)
    return ""


def compression_advice(up: float, down: float) -> str:
    """The gain of compression on a link of so many bytes a second up and down, as text; "" if it is small."""
    push_s, pull_s = EXAMPLE_NBYTES / up, EXAMPLE_NBYTES / down
    elements = EXAMPLE_NBYTES / 4
    packed_push_s, packed_pull_s = push_s / 4 + INT8_S * elements, pull_s / 2 + BFLOAT16_S * elements
    gains = []
    if packed_push_s <= WORTH * push_s:
        gains.append(
            f"a push of 100 MB takes {push_s:.2f} s and with compression=dps.compress.Int8() {packed_push_s:.2f} s"
        )
    if packed_pull_s <= WORTH * pull_s:
        gains.append(f"a pull {pull_s:.2f} s and with pull_compression=dps.compress.Bfloat16() {packed_pull_s:.2f} s")
    return "; ".join(gains)
