"""Attaches this process to a Ray that runs, or to one that it starts for itself, and leaves it again."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any

from dps.errors import ConfigError, TaskLost, Unavailable
from dps.transport.clock import now

INIT_S, LEAVE_S = 60.0, 20.0
"""How long Ray may take to answer at first, and to be left."""
CONNECT_S = 5.0
LOOK_S = 0.1


def wanted() -> str:
    """The value of RAY_ADDRESS; "" if it is not set."""
    found = os.environ.get("RAY_ADDRESS", "")
    return "" if found in ("auto", "local") else found


def check_address() -> None:
    """Raise ConfigError if RAY_ADDRESS cannot be the address of a Ray."""
    from dps.cluster.address import parse

    if wanted().startswith("ray://"):
        raise ConfigError(f"--on ray: got RAY_ADDRESS={wanted()}, for Ray clients; wanted HOST:PORT of its head")
    try:
        host = parse(wanted() or "localhost:6379").host
    except ConfigError:
        host = ""
    if not host:
        raise ConfigError(f"--on ray: got RAY_ADDRESS={wanted()}, wanted HOST:PORT of Ray's head")


class Attaching:
    """Ray, on a thread of its own that stays until `leave`: attaching may hang, it would take the signals of the main
    thread, and what Ray starts here dies with the thread that has started it."""

    def __init__(self, cpus: int) -> None:
        """`cpus`: how many processors a Ray that is started here has."""
        self._ray, self._cpus = importlib.import_module("ray"), cpus
        self._failed: BaseException | None = None
        self._there, self._left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, name="dps is attached to Ray", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._attach()
        except BaseException as error:
            self._failed = error
        self._there.set()
        if self._failed is None:
            self._left.wait()
            self._ray.shutdown()

    def _attach(self) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "dps"}
        if wanted():
            self._check_reached()
        try:
            self._ray.init(address=os.environ.get("RAY_ADDRESS") or "auto", **quiet)
        except ConnectionError:
            if wanted():
                raise
            self._ray.init(address="local", include_dashboard=False, num_cpus=self._cpus, **quiet)

    def _check_reached(self) -> None:
        """Raise Unavailable if nobody listens at the address: Ray itself would try for a minute."""
        from dps.cluster.address import parse
        from dps.transport.address import resolve
        from dps.transport.interfaces import greets

        address = parse(wanted())
        greets(resolve(address.host), address.port, CONNECT_S)

    def wait(self, given_up: threading.Event) -> Any:
        """Ray, once it answers. Raises Unavailable if it does not, and TaskLost when it is given up."""
        deadline, where = now() + INIT_S, wanted() or "this machine"
        while not self._there.wait(LOOK_S):
            if given_up.is_set():
                raise TaskLost(f"Ray at {where} was given up before it answered")
            if now() > deadline:
                raise Unavailable(f"Ray at {where} did not answer within {INIT_S:.0f} s; try: ray status")
        if self._failed is not None:
            why = " ".join(str(self._failed).split())[:200]
            raise Unavailable(f"Ray at {where} cannot be reached: {why}; try: ray status") from self._failed
        return self._ray

    def leave(self) -> None:
        """Leave it, which ends what was started here; as soon as it answers, if it has not yet. Blocks."""
        self._left.set()
        if self._there.is_set():
            self._thread.join(LEAVE_S)
