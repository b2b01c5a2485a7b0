"""What a step of `dps.torch.Optimizer` costs beside one of `torch.optim`: one worker and one ps, two processes.

    python benchmarks/torch_steps.py [--rounds 30] [--optimizer Adam] [--overlap] [--json FILE]

A worker trains two copies of a network (784 inputs, batches of 128, one thread of PyTorch), one with `torch.optim` and
one with `dps.torch.Optimizer`, in bursts of steps by turns; who goes first alternates. The table shows for models of
0.4, 5 and 100 MB the median milliseconds of a whole step (forward, backward, optimizer) with each, the median ratio of
a round and the middle half of all rounds, and the milliseconds of `optimizer.step()` alone. The losses of both copies
are compared at the end. Needs PyTorch: pip install "dps[torch]".
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WIDTHS = {"0.4 MB": (784, 128, 10), "5 MB": (784, 1000, 500, 10), "100 MB": (784, 4096, 4096, 1024, 10)}
"""The layers of each model."""
CALLS = {"0.4 MB": 50, "5 MB": 10, "100 MB": 2}
"""The steps of a burst."""
BATCH, UNCOUNTED = 128, 3
SAME = 0.01
"""By how much the losses of the two copies may differ: after some hundred steps of Adam rounding is seen."""


class Burst(NamedTuple):
    """Seconds of one step."""

    whole: float
    optimizer: float


def train(server: Any, size: str, optimizer: str, rounds: int, overlap: bool) -> list[tuple[Burst, Burst]]:
    """One worker. Returns for each counted round a burst with torch.optim and one with dps."""
    import torch

    import dps

    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.rand(BATCH, WIDTHS[size][0]), torch.randint(0, 10, (BATCH,))
    theirs = _network(size)
    ours = _network(size)
    ours.load_state_dict(theirs.state_dict())
    rate = 1e-4
    plain = getattr(torch.optim, optimizer)(theirs.parameters(), lr=rate)
    rule = getattr(dps.optim, optimizer)(rate)
    with_ps = dps.torch.Optimizer(ours.named_parameters(), server, rule, overlap=overlap)

    def burst(model: Any, opt: Any) -> Burst:
        in_step, began = 0.0, time.perf_counter()
        for _ in range(CALLS[size]):
            opt.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            before = time.perf_counter()
            opt.step()
            in_step += time.perf_counter() - before
        return Burst((time.perf_counter() - began) / CALLS[size], in_step / CALLS[size])

    found = []
    for number in range(rounds + UNCOUNTED):
        pair: dict[int, Burst] = {}
        for at in (number % 2, 1 - number % 2):
            pair[at] = burst(*((theirs, plain), (ours, with_ps))[at])
        if number >= UNCOUNTED:
            found.append((pair[0], pair[1]))
    with torch.no_grad():
        losses = [float(torch.nn.functional.cross_entropy(model(images), labels)) for model in (theirs, ours)]
    with_ps.close()
    if abs(losses[0] - losses[1]) > SAME and not overlap:  # whose gradients are of the values of a step before
        raise ValueError(f"the copies have trained to losses of {losses}, which differ by more than {SAME}")
    return found


def _network(size: str) -> Any:
    from torch import nn

    layers = list[Any]()
    for before, after in itertools.pairwise(WIDTHS[size]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lines_of(found: dict[str, list[tuple[Burst, Burst]]], optimizer: str) -> Iterator[str]:
    """The table."""
    yield f"{optimizer:8} {'torch.optim':>12} {'dps':>10} {'ratio':>7} {'middle half':>13} {'step() alone':>20}"
    for size, pairs in found.items():
        ratios = sorted(ours.whole / theirs.whole for theirs, ours in pairs)
        low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
        whole = [1e3 * statistics.median(burst.whole for burst in bursts) for bursts in zip(*pairs, strict=True)]
        alone = [1e3 * statistics.median(burst.optimizer for burst in bursts) for bursts in zip(*pairs, strict=True)]
        yield (
            f"{size:8} {whole[0]:9.2f} ms {whole[1]:7.2f} ms {statistics.median(ratios):7.2f} {low:6.2f}-{high:.2f} "
            f"{alone[0]:7.2f} to {alone[1]:.2f} ms"
        )


def main(argv: Sequence[str]) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="for each model")
    parser.add_argument("--optimizer", default="Adam", choices=["SGD", "Adagrad", "Adam", "AdamW"])
    parser.add_argument("--sizes", default=",".join(WIDTHS), help=f"some of {', '.join(WIDTHS)}")
    parser.add_argument("--overlap", action="store_true", help="dps.torch.Optimizer(overlap=True)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all bursts there")
    args = parser.parse_args(argv)
    sizes = args.sizes.split(",")
    if unknown := [size for size in sizes if size not in WIDTHS]:
        parser.error(f"--sizes {','.join(unknown)} is not known; wanted some of {', '.join(WIDTHS)}")
    if args.rounds < 1:
        parser.error("--rounds: wanted at least 1")
    try:
        import torch  # noqa: F401
    except ImportError:
        parser.error('needs PyTorch: pip install "dps[torch]"')
    import dps

    found = {}
    for size in sizes:
        with dps.LocalCluster(ps=1, workers=1, processes=True) as local:
            (pairs,) = local.run(train, size, args.optimizer, args.rounds, args.overlap).wait(progress=False).results
        found[size] = [(Burst(*theirs), Burst(*ours)) for theirs, ours in pairs]
    print("\n".join(lines_of(found, args.optimizer)))
    if args.json is not None:
        args.json.write_text(
            json.dumps({"optimizer": args.optimizer, "overlap": args.overlap, "rounds": found}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
