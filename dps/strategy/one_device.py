"""All variables and all computing on one device."""

from __future__ import annotations

from dps.cluster.device import Device
from dps.optim import Optimizer
from dps.strategy.devices import gpu_of, present
from dps.strategy.strategy import Strategy
from dps.strategy.variables import Variables


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
        super().__init__(present([device], "OneDevice"), timeout)

    def _variables(self, params: object, optimizer: Optimizer | None) -> Variables:
        from dps.strategy.mirrored_variables import MirroredVariables

        return MirroredVariables(self, params, optimizer, [gpu_of(str(self.devices[0]))], [0])
