"""The client's side of the shards: nested arrays, the plan that places them, and the shards as runs of bytes."""
