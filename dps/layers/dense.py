"""A dense layer: activation(x @ w + b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dps.kernels.layers_cpu import ACTIVATIONS
from dps.layers import arrays
from dps.layers.place import ComputePlace


@dataclass(frozen=True)
class DensePass:
    """The arrays of a forward pass that its backward pass needs, on the device."""

    x: Any
    w: Any
    out: Any


@dataclass(frozen=True)
class Dense:
    """A dense layer: `activation(x @ w + b)`, from (batch, n_in) to (batch, n_out).

    Its parameters are "w" (n_in, n_out) and "b" (n_out,). `b` begins with 0; `w` is normal with variance 2 / n_in for
    relu (He et al. 2015), else 1 / n_in (LeCun et al. 1998).

    Args:
        n_in: The number of inputs.
        n_out: The number of outputs.
        activation: "relu", "tanh", "sigmoid" or "identity".
        name: The key of its parameters in the network's. None: "dense_" and the layer's number.

    Raises:
        ValueError: An unknown activation, or sizes below 1.

    Example:
        ```pycon
        >>> layer = dps.layers.Dense(784, 10, activation="identity", name="out")
        >>> network = dps.layers.Sequential([layer])
        >>> network.initial_params(seed=1)["out"]["w"].shape
        (784, 10)
        ```
    """

    n_in: int
    n_out: int
    activation: str = "relu"
    name: str | None = None

    kind = "dense"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"Dense: got activation={self.activation!r}, wanted one of {', '.join(ACTIVATIONS)}")
        if self.n_in < 1 or self.n_out < 1:
            raise ValueError(f"Dense: got {self.n_in} inputs and {self.n_out} outputs, wanted 1 or more of each")

    def initial(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> dict[str, Any]:
        """b is 0; w is normal with variance 2 / n_in for relu (He et al. 2015), else 1 / n_in (LeCun et al. 1998)."""
        scale = ((2 if self.activation == "relu" else 1) / self.n_in) ** 0.5
        return {"w": rng.normal(0, scale, (self.n_in, self.n_out)).astype(dtype), "b": np.zeros(self.n_out, dtype)}

    def checked(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """Check the network's input, if this is the first layer."""
        return arrays.features(x, self.n_in, dtype)

    def forward(
        self, place: ComputePlace, name: str, params: Any, x: Any, dtype: np.dtype[Any], scores: Any
    ) -> DensePass:
        """`x` is on the device. `scores` is the host array that gets the result, or None."""
        w = place.load_array(arrays.parameter(params["w"], f"{name}/w", (self.n_in, self.n_out), dtype))
        b = place.load_array(arrays.parameter(params["b"], f"{name}/b", (self.n_out,), dtype))
        out = place.empty((x.shape[0], self.n_out), dtype) if scores is None else place.result(scores)
        place.kernels.dense_forward(out, x, w, b, self.activation, place.stream)
        return DensePass(x, w, out)

    def backward(
        self, place: ComputePlace, name: str, made: DensePass, dout: Any, out: Any, first: bool
    ) -> tuple[Any, Any]:
        """The gradients by the parameters, in the arrays of `out` if given, and by `x` unless this layer is first."""
        dtype = made.w.dtype
        given = {} if out is None else out
        shapes = {"w": (self.n_in, self.n_out), "b": (self.n_out,)}
        grads = {
            key: arrays.target(given[key], f"{name}/{key}", shape, dtype) if key in given else np.empty(shape, dtype)
            for key, shape in shapes.items()
        }
        dx = None if first else place.empty(made.x.shape, dtype)
        place.kernels.dense_backward(
            dx, place.result(grads["w"]), place.result(grads["b"]), dout, made.out, made.x, made.w, self.activation,
            place.stream,
        )  # fmt: skip
        return grads, dx
