"""Models of PyTorch for tests. Import it inside of tests: loading torch takes a while."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")


class Tied(torch.nn.Module):  # type: ignore[misc]
    """An embedding whose table is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(5, 3)
        self.out = torch.nn.Linear(3, 5)
        self.out.weight = self.embed.weight

    def gradients(self) -> dict[str, Any]:
        """Those of one batch, by name; PyTorch gives shared weights once."""
        self.zero_grad()
        words = torch.arange(5)
        torch.nn.functional.cross_entropy(self.out(self.embed(words)), (words + 1) % 5).backward()
        return {name: p.grad for name, p in self.named_parameters()}


def by_hand(steps: int) -> dict[str, Any]:
    """What plain PyTorch learns in so many steps."""
    net = Tied()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(steps):
        net.gradients()
        optimizer.step()
    return {name: value.clone() for name, value in net.state_dict().items()}
