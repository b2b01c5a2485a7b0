"""A replica on each device of this machine, with mirrored variables."""

from __future__ import annotations

from collections.abc import Sequence

from dps.cluster.device import Device
from dps.optim import Optimizer
from dps.strategy.devices import gpu_of, present
from dps.strategy.strategy import Strategy
from dps.strategy.variables import Variables


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
        super().__init__(present(devices, "Mirrored"), timeout)

    def _variables(self, params: object, optimizer: Optimizer | None) -> Variables:
        from dps.strategy.mirrored_variables import MirroredVariables

        gpus = [gpu_of(str(device)) for device in self.devices]
        homes = list(dict.fromkeys(gpus))
        return MirroredVariables(self, params, optimizer, homes, [homes.index(gpu) for gpu in gpus])
