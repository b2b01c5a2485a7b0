"""Values on their way out: reads, lookups, checkpoints."""
