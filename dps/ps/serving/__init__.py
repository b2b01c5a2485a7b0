"""Serving of values: reads, lookups, checkpoints."""
