"""What a seed varies beside faults: optimizers, dtypes, refused pushes, and the tuning, so that every way is taken."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from dps import compress, optim
from dps.training.update_modes import Async, Bounded, SyncReplicas, Update

EXACT: list[optim.Optimizer] = [
    optim.SGD(1.0), optim.Momentum(1.0, momentum=0.0),
    optim.Adam(1.0, beta1=0.0, beta2=0.0, epsilon=1e-30),
    optim.Adagrad(1.0, initial_accumulator=1e-30, epsilon=0.0), optim.RMSProp(1.0, decay=0.0, epsilon=1e-30),
    optim.Adagrad(1.0, initial_accumulator=1e-30, epsilon=0.0, rowwise=True),
]  # fmt: skip
"""Each adds exactly 1 to an element whose gradient is -1 once, and else 0; the first two also 1 / n for -1 / n."""


@dataclass
class Variety:
    """What a training program of the simulator does differently."""

    optimizer: optim.Optimizer = EXACT[0]
    dtype: str = "<f4"
    """Of the variables that are no tables."""
    spoils: bool = False
    """Whether every third push is made twice, at first with NaN in it."""
    dense_tables: bool = False
    """Whether the tables' gradients are dense at times, where other workers push rows."""
    some: bool = False
    """Whether there are pushes of nothing, or of one variable, that change no value."""
    fixed: bool = False
    """Whether there is a variable that is not trained."""
    width: int = 1
    """Columns of the last variable that is no table: with more than one it is larger than its neighbours."""
    compression: Any = None
    memory_faults: float = 0.0
    tuning: dict[str, Any] = field(default_factory=dict)
    """As `Tuning.where` takes it."""
    averages: bool = False
    """Whether moving averages are kept. They forget at once, so that they are the values of some version."""


def variety(mode: str, seed: int, ps: int) -> Variety:
    """Of one seed. Means are exact in float32 alone, and only where the optimizer is linear."""
    draw = random.Random(f"variety {mode} {seed}")
    linear = mode == "sync"
    dtype = "<f4" if linear else draw.choice(["<f4", "<f8", "<f2", "bfloat16"])
    return Variety(
        draw.choice(EXACT[:2] if linear else EXACT), dtype, spoils=draw.random() < 0.5,
        dense_tables=draw.random() < 0.5, some=draw.random() < 0.6 and (linear or ps == 1), fixed=draw.random() < 0.3,
        width=random.Random(f"width {mode} {seed}").choice([1, 1, 7]),
        compression=compress.Int8() if dtype in ("<f4", "<f8") and draw.random() < 0.2 else None,
        memory_faults=draw.choice([0.0, 0.02, 0.2]),
        tuning={
            "piece_nbytes": draw.choice([16, 64, 256, 1 << 20]), "shard_nbytes": draw.choice([0, 0, 1 << 20]),
            "shared_nbytes": draw.choice([0, 0, 1 << 20]), "small_nbytes": draw.choice([0, 1 << 18]),
            "together": draw.choice([1, 64]), "rows__least": draw.choice([1, 512]),
            "rows__kept": draw.choice([0, 32]), "intake__attached": draw.choice([1, 32]),
            "intake__credits": draw.choice([1, 2]), "store__stream_nbytes": draw.choice([0, 1 << 19]),
            "store__group_nbytes": draw.choice([64, 24 << 20]), "store__ahead_pieces": draw.choice([0, 3, 1000]),
            "store__large_pieces": draw.choice([0, 8]), "store__most_skipped": draw.choice([0, 63]),
            "serving__answers": draw.choice([1, 4]), "serving__fast_nbytes_s": draw.choice([0.0, 1e9, 1e12]),
            "client__streamed_pieces": draw.choice([0, 3]), "client__small_part": draw.choice([1, 4, 64]),
            "client__step_patience_s": draw.choice([0.02, 0.3, 3.0]),
            "piece_s": random.Random(f"pieces {mode} {seed}").choice([1e-9, 0.01]),
        },
        averages=draw.random() < 0.4,
    )  # fmt: skip


def options(update: Update, seed: int) -> Update:
    """Async pushes may be compensated for what others have done meanwhile: here nobody does so in the same elements."""
    if isinstance(update, SyncReplicas | Bounded) or seed % 3:
        return update
    return Async(compensation=0.5)
