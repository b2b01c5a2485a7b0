"""Compressors of gradients and values, as users write them. The code is in `dps.training.compression`."""

from __future__ import annotations

from dps.training.compression import Bfloat16, Compressor, Float16, Int8, RandomK, TopK, from_wire

__all__ = ["Bfloat16", "Compressor", "Float16", "Int8", "RandomK", "TopK", "from_wire"]
