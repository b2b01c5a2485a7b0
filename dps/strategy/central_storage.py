"""A replica on each GPU, with the variables in one place."""

from __future__ import annotations

from collections.abc import Sequence

from dps.cluster.device import Device
from dps.optim import Optimizer
from dps.strategy.devices import gpu_of, present
from dps.strategy.strategy import Strategy
from dps.strategy.variables import Variables


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
        super().__init__(present(devices, "CentralStorage"), timeout)

    def _variables(self, params: object, optimizer: Optimizer | None) -> Variables:
        from dps.strategy.mirrored_variables import MirroredVariables

        home = gpu_of(str(self.devices[0])) if self.local_replicas == 1 else None
        return MirroredVariables(self, params, optimizer, [home], [0] * self.local_replicas)
