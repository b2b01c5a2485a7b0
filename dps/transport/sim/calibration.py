"""What messages and arithmetic cost on a machine, as `dps bench --calibrate` measures it and the simulator charges it.

A calibration is a file of JSON. One is part of the package (`shipped`): the machine of the documentation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from dps.errors import ConfigError
from dps.transport.sim.machines import Handling, Machines
from dps.transport.sim.network import Network

FORMAT = 1
SHIPPED = Path(__file__).with_name("calibration.json")
SHORTEST_TRIP_S = 1e-6


@dataclass(frozen=True, slots=True)
class LaneCosts:
    """What a message costs on one lane: sockets, or shared memory. A ps's costs hold for a chief, too.

    `trip_s`: seconds, one way, in which no core is at work, within one machine. `rested`: as `Machines` has it.
    """

    ps: Handling
    worker: Handling
    trip_s: float
    rested: tuple[tuple[float, float], ...] = ()

    @property
    def handling(self) -> dict[str, Handling]:
        """By job."""
        return {"chief": self.ps, "ps": self.ps, "worker": self.worker}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The costs of one kind of machine.

    Args:
        name: What people call it; `dps.simulate` says it.
        cores: How many cores it has.
        sockets: The costs of messages between machines.
        shared_memory: Those of messages within one machine.
        update_byte_s: Core seconds of an update for each byte of the gradient, by the number of the optimizer's slots.
        card_bytes_per_s: The rate of its network card, in each direction. It is told, not measured.
        latency_s: Of its network, one way, seconds. It is told, not measured.
        about: How it was measured: texts and numbers.

    Raises:
        ConfigError: A figure that no machine has.

    Example:
        ```pycon
        >>> dps.sim.Calibration.shipped().cores
        2
        ```
    """

    name: str
    cores: int
    sockets: LaneCosts
    shared_memory: LaneCosts
    update_byte_s: tuple[float, ...]
    card_bytes_per_s: float
    latency_s: float
    about: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.card_bytes_per_s <= 0 or self.latency_s < 0 or self.cores < 1 or not self.update_byte_s:
            raise ConfigError(
                f"calibration {self.name!r}: got cores={self.cores}, card_bytes_per_s={self.card_bytes_per_s}, "
                f"latency_s={self.latency_s}, {len(self.update_byte_s)} update_byte_s; wanted at least one core, "
                "a card with a rate, a latency of 0 or more, and at least one update_byte_s"
            )

    def __str__(self) -> str:
        return self.name

    def machines(self, shared_memory: bool = False) -> Machines:
        """One such machine for each task; with `shared_memory` one for all of them.

        Args:
            shared_memory: Whether values and gradients travel through shared memory.

        Returns:
            The machines, as `dps.sim.World` takes them.
        """
        lane = self.shared_memory if shared_memory else self.sockets
        return Machines(
            self.cores, shared_memory, lane.handling, inf if shared_memory else self.card_bytes_per_s, lane.rested,
            update_byte_s=self.update_byte_s,
        )  # fmt: skip

    def network(self, shared_memory: bool = False) -> Network:
        """The links between such machines: only latency, because it is the cards that limit the rate.

        Args:
            shared_memory: Whether all tasks are on one machine.

        Returns:
            The network, as `dps.sim.World` takes it.
        """
        if shared_memory:
            return Network(max(SHORTEST_TRIP_S, self.shared_memory.trip_s), 0.0, 1e12)
        return Network(self.latency_s + self.sockets.trip_s, bytes_per_s=self.card_bytes_per_s)

    def with_card(self, gigabits: float, latency_s: float | None = None) -> Calibration:
        """The same machine with another network card.

        Args:
            gigabits: Of the card, per second, each way.
            latency_s: Of the network, one way. None: as it is.

        Returns:
            The calibration.
        """
        latency = self.latency_s if latency_s is None else latency_s
        return replace(self, card_bytes_per_s=gigabits * 1e9 / 8, latency_s=latency)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON. Blocks on the disk.

        Args:
            path: The file, which is overwritten.

        Raises:
            OSError: The disk refuses.
        """
        Path(path).write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read a file that `write` or `dps bench --calibrate` has written.

        Args:
            path: The file.

        Returns:
            The calibration.

        Raises:
            ConfigError: The file is not there, or is no calibration; the message says what was found.
        """
        try:
            found = json.loads(Path(path).read_text())
            if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
                raise ValueError(f'wanted a JSON object with "format": {FORMAT}')
            return _calibration(found)
        except (OSError, ValueError, ConfigError) as error:
            raise ConfigError(
                f"{os.fspath(path)} is no calibration: {error}; make one with dps bench --calibrate FILE"
            ) from None

    @classmethod
    def shipped(cls) -> Calibration:
        """That of the machine of the documentation, which `dps.simulate` uses unless it is told otherwise.

        Returns:
            The calibration.
        """
        return cls.read(SHIPPED)


def chosen(given: Calibration | str | os.PathLike[str] | None) -> Calibration | None:
    """The calibration that `dps.simulate` was given: "shipped", a file, or one as it is. ConfigError for others."""
    if given is None or isinstance(given, Calibration):
        return given
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f'calibration: got {given!r}, wanted "shipped", a file of dps bench --calibrate, a dps.sim.Calibration '
            "or None"
        )
    return Calibration.shipped() if given == "shipped" else Calibration.read(given)


def _calibration(found: dict[str, Any]) -> Calibration:
    """ValueError, or ConfigError, for what is none."""
    _check_names(found, Calibration, "the calibration")
    cores, name, about = found["cores"], found["name"], found.get("about")
    if not isinstance(cores, int) or isinstance(cores, bool):
        raise ValueError(f"cores: got {cores!r}, wanted a whole number")
    if not isinstance(name, str) or not isinstance(about, dict | None):
        raise ValueError(f"name, about: got {name!r} and {about!r}, wanted a text, and an object or null")
    lanes = [_lane(found[lane], lane) for lane in ("sockets", "shared_memory")]
    card, latency = (_number(found[key], key) for key in ("card_bytes_per_s", "latency_s"))
    rates = _numbers(found["update_byte_s"], "update_byte_s")
    return Calibration(name, cores, lanes[0], lanes[1], rates, card, latency, about)


def _lane(found: Any, name: str) -> LaneCosts:
    _check_names(found, LaneCosts, name)
    rested = found.get("rested", [])
    points = [_numbers(point, f"{name}.rested") for point in rested] if isinstance(rested, list) else []
    pairs = tuple((point[0], point[1]) for point in points if len(point) == 2)
    if pairs != tuple(sorted(pairs)) or len(pairs) != (len(rested) if isinstance(rested, list) else -1):
        raise ValueError(f"{name}.rested: got {rested!r}, wanted a list of pairs with rising times")
    jobs = [_handling(found[job], f"{name}.{job}") for job in ("ps", "worker")]
    return LaneCosts(jobs[0], jobs[1], _number(found["trip_s"], f"{name}.trip_s"), pairs)


def _handling(found: Any, name: str) -> Handling:
    _check_names(found, Handling, name)
    return Handling(**{key: _number(value, f"{name}.{key}") for key, value in found.items()})


def _check_names(found: Any, cls: Any, where: str) -> None:
    """ValueError for no object, and for names that are unknown or missing."""
    if not isinstance(found, dict):
        raise ValueError(f"{where}: got {found!r}, wanted an object")
    known = {field.name: field for field in fields(cls)}
    if unknown := found.keys() - known.keys():
        raise ValueError(f"{where} has {', '.join(sorted(unknown))}, which is not known")
    needed = {name for name, field in known.items() if field.default is MISSING}
    if missing := needed - found.keys():
        raise ValueError(f"{where} lacks {', '.join(sorted(missing))}")


def _numbers(found: Any, name: str) -> tuple[float, ...]:
    if not isinstance(found, list | tuple):
        raise ValueError(f"{name}: got {found!r}, wanted a list of numbers")
    return tuple(_number(each, name) for each in found)


def _number(found: Any, name: str) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found) or found < 0:
        raise ValueError(f"{name}: got {found!r}, wanted a number of 0 or more")
    return float(found)
