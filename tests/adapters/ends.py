"""A script without `close()`, as users write it: it trains with `dps.torch.Optimizer` and ends as its argument says."""

import sys
from typing import Any

import dps.torch
from tests.adapters.models import linear, torch

STEPS = 12


class Told(dps.Hook):
    """Says that the session has ended well."""

    def end(self, session: Any) -> None:
        print(f"good end at step {session.global_step}", flush=True)


def train(server: dps.Server, how: str) -> None:
    model = linear()
    hooks = [dps.StopAtStep(last_step=STEPS), Told()]
    opt = dps.torch.Optimizer(model.named_parameters(), server, dps.optim.SGD(0.1), hooks=hooks)
    while not opt.should_stop():
        opt.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        opt.step()
    if how == "exit 3":
        sys.exit(3)
    if how == "exit 0":
        sys.exit()
    if how == "raise":
        raise ValueError("no more")


if __name__ == "__main__":
    train(dps.Server.from_env(local=True), sys.argv[1])
    print("the last line", flush=True)
