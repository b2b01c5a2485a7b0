"""A layer that is an activation alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dps.errors import ConfigError
from dps.kernels.layers_cpu import ACTIVATIONS
from dps.nn.layer import Computation, Layer


class Activation(Layer):
    """An activation: "relu", "tanh", "sigmoid", or "linear" for none.

    Args:
        activation: Its name.
        name: As of `Layer`.

    Raises:
        ConfigError: An unknown activation.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Activation("relu")])
        >>> model.predict(np.array([[-1.0, 2.0]])).tolist()
        [[0.0, 2.0]]
        ```
    """

    kind = "activation"

    def __init__(self, activation: str, name: str | None = None) -> None:
        super().__init__(name)
        self.activation = checked_activation(activation, "Activation")

    def forward(self, computation: Computation, params: Mapping[str, Any], *inputs: Any) -> tuple[Any, Any]:
        """As Layer.forward."""
        out = computation.empty(inputs[0].shape)
        computation.kernels.activate(out, inputs[0], self.activation, computation.stream)
        return out, out

    def backward(
        self, computation: Computation, params: Mapping[str, Any], kept: Any, dout: Any
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """As Layer.backward."""
        dx = computation.empty(dout.shape)
        computation.kernels.activate_backward(dx, dout, kept, self.activation, computation.stream)
        return [dx], {}


def checked_activation(activation: object, what: str) -> str:
    """The name of an activation, as kernels know it. ConfigError for an unknown one."""
    if activation in (None, "linear"):
        return "identity"
    if activation in ACTIVATIONS:
        return str(activation)
    more = "; losses take scores, so leave a softmax out" if activation == "softmax" else ""
    known = ", ".join(repr(name) for name in ACTIVATIONS if name != "identity")
    raise ConfigError(f"{what}: got activation={activation!r:.40}, wanted {known} or 'linear'{more}")
