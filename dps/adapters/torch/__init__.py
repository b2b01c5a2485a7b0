"""PyTorch on a ps: an optimizer, an embedding and schedules. `dps.torch` has the names."""
