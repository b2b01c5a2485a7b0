"""The memory of a shard: arenas, versions, leases, and the kernels that update them."""
