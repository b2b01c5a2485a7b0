"""JAX models on a ps: an optimizer that is an optax transformation. The code is in `dps.adapters.jax`."""

from __future__ import annotations

from dps.errors import MissingExtra

try:
    from dps.adapters.jax import Transformation, optimizer
except ImportError as missing:
    library = (missing.name or "").partition(".")[0]
    if library not in ("jax", "jaxlib", "optax"):
        raise
    raise MissingExtra(
        f'dps.jax needs JAX and optax, and {library} is not installed; get them by: pip install "dps[jax]"'
    ) from None

__all__ = ["Transformation", "optimizer"]
