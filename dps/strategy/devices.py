"""Checks which of the devices that a strategy is asked for exist."""

from __future__ import annotations

from collections.abc import Sequence

from dps.cluster.device import Device
from dps.errors import ConfigError
from dps.telemetry import log


def present(devices: Sequence[str | Device] | None, strategy: str) -> list[str]:
    """The devices that are there, in their short form. None: all GPUs of this process, or the CPU if there is none.

    Any number of CPU devices is there: each is one more replica on the processors of this machine. Devices that are not
    there are logged as a warning. ConfigError if none is left, for two that are the same, and for what is no device.
    """
    if isinstance(devices, str | Device):
        raise ConfigError(f"{strategy}: devices: got {str(devices)!r}, wanted a list, as [{str(devices)!r}]")
    if devices is None:
        return [f"/gpu:{index}" for index in range(_gpus())] or ["/cpu:0"]
    wanted = [_short(spec, strategy) for spec in devices]
    if twice := sorted({name for name in wanted if wanted.count(name) > 1}):
        raise ConfigError(f"{strategy}: devices: got {twice[0]} more than once, wanted each once")
    there = _gpus() if any(name.startswith("/gpu") for name in wanted) else 0
    missing = [name for name in wanted if name.startswith("/gpu") and int(name.rpartition(":")[2]) >= there]
    left = [name for name in wanted if name not in missing]
    if not left:
        raise ConfigError(
            f"{strategy}: got the devices {wanted}, of which none is there; this process has {there} GPUs; try "
            "['/cpu:0'], or devices=None for all that there are"
        )
    if missing:
        log.warning("%s: %s not there, goes on with %s", strategy, ", ".join(missing), ", ".join(left))
    return left


def gpu_of(device: str) -> int | None:
    """The number of the device's GPU; None for the CPU."""
    return int(device.rpartition(":")[2]) if device.startswith("/gpu") else None


def _short(spec: str | Device, strategy: str) -> str:
    try:
        found = Device(spec)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{strategy}: {error}") from None
    if found.device_type not in ("CPU", "GPU"):
        raise ConfigError(f"{strategy}: got the device {str(spec)!r}, wanted '/cpu:0' or '/gpu:0'")
    return f"/{found.device_type.lower()}:{found.device_index or 0}"


def _gpus() -> int:
    """The number of GPUs that this process may use. Imports numba.cuda."""
    try:
        from dps.kernels import device
    except ConfigError:  # it cannot be imported
        return 0
    return device.gpus()
