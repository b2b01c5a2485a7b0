"""Variables as client and ps share them: nested arrays, the plan that places them, shards as runs of bytes."""
