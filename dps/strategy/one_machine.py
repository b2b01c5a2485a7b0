"""All variables and all computing on one device."""

from __future__ import annotations

from collections.abc import Sequence

from dps.cluster.device import Device
from dps.errors import ConfigError
from dps.process.telemetry import log
from dps.strategy.strategy import Strategy, Variables
from dps.training.optimizers import Optimizer


def resolve_devices(devices: Sequence[str | Device] | None, strategy: str) -> list[str]:
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


def homes_of(devices: Sequence[object]) -> tuple[list[int | None], list[int]]:
    """Where the copies of the replicas on these devices are, None for the CPU, and which one each replica reads: those
    on one GPU share one, and so do all on the CPU."""
    gpus = [gpu_of(str(device)) for device in devices]
    homes = list(dict.fromkeys(gpus))
    return homes, [homes.index(gpu) for gpu in gpus]


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


class OneDevice(Strategy):
    """One replica, on one device: for a single GPU, or to try a training text before it is distributed.

    Args:
        device: Where variables lie and replicas compute, such as "/gpu:0".
        timeout: As of `Strategy`.

    Raises:
        ConfigError: The device is not there, or is none.

    Example:
        ```pycon
        >>> strategy = dps.strategy.OneDevice("/cpu:0")
        >>> with strategy.scope():
        ...     variables = strategy.variables({"w": np.ones(2)}, optimizer=dps.optim.SGD(0.1))
        >>> def step():
        ...     variables.apply_gradients(variables.read())  # the gradient of w^2 / 2
        >>> strategy.run(step)
        >>> variables.read()["w"]
        array([0.9, 0.9])
        ```
    """

    def __init__(self, device: str | Device, timeout: float = 60.0) -> None:
        super().__init__(resolve_devices([device], "OneDevice"), timeout)

    def _variables(self, params: object, optimizer: Optimizer | None) -> Variables:
        from dps.strategy.mirrored_variables import MirroredVariables

        return MirroredVariables(self, params, optimizer, [gpu_of(str(self.devices[0]))], [0])


class Mirrored(Strategy):
    """A replica on each device of this machine; their gradients are summed, and all copies get the same update.

    Each GPU has a copy of the variables. On the CPU all replicas share one, which they only read.

    Args:
        devices: The devices, such as ["/gpu:0", "/gpu:1"]. Each "/cpu:N" is one more replica on the CPU. Those that are
            not there are left out, with a warning. None: all GPUs, or one replica on the CPU if there is none.
        timeout: As of `Strategy`.

    Raises:
        ConfigError: None of the devices is there, or one is given twice.

    Example:
        ```pycon
        >>> strategy = dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        >>> with strategy.scope():
        ...     first, sgd = {"w": np.zeros(())}, dps.optim.SGD(0.5)
        ...     variables = strategy.variables(first, optimizer=sgd)
        >>> def step(x):
        ...     errors = variables.read()["w"] - x
        ...     variables.apply_gradients({"w": np.array(np.sum(errors) / 4)})
        ...     return dps.strategy.average_loss(errors**2 / 2, 4)
        >>> for batch in strategy.distribute_dataset([np.array([1.0, 2.0, 3.0, 2.0])] * 3):
        ...     losses = strategy.run(step, args=(batch,))
        ...     print(round(float(strategy.reduce("sum", losses)), 5))
        2.25
        0.75
        0.375
        ```
    """

    def __init__(self, devices: Sequence[str | Device] | None = None, timeout: float = 60.0) -> None:
        super().__init__(resolve_devices(devices, "Mirrored"), timeout)

    def _variables(self, params: object, optimizer: Optimizer | None) -> Variables:
        from dps.strategy.mirrored_variables import MirroredVariables

        return MirroredVariables(self, params, optimizer, *homes_of(self.devices))


class CentralStorage(Strategy):
    """A replica on each device of this machine; variables are kept once, on the CPU.

    With one GPU only, they are kept there. For models whose variables and slots do not fit several times.

    Args:
        devices: As of `Mirrored`.
        timeout: As of `Strategy`.

    Raises:
        ConfigError: None of the devices is there, or one is given twice.

    Example:
        ```pycon
        >>> strategy = dps.strategy.CentralStorage(["/cpu:0", "/cpu:1"])
        >>> with strategy.scope():
        ...     variables = strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0))
        >>> strategy.run(lambda: variables.apply_gradients({"w": np.ones(2)})).values[0].step
        1
        >>> variables.read()["w"]
        array([-2., -2.])
        ```
    """

    def __init__(self, devices: Sequence[str | Device] | None = None, timeout: float = 60.0) -> None:
        super().__init__(resolve_devices(devices, "CentralStorage"), timeout)

    def _variables(self, params: object, optimizer: Optimizer | None) -> Variables:
        from dps.strategy.mirrored_variables import MirroredVariables

        home = gpu_of(str(self.devices[0])) if self.local_replicas == 1 else None
        return MirroredVariables(self, params, optimizer, [home], [0] * self.local_replicas)
