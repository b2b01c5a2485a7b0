"""Small models of PyTorch and loops over them. Import it inside of tests that need torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')
torch.set_num_threads(1)


def classifier(seed: int = 0, **layers: Any) -> Any:
    """A model with batch normalisation; the same one for the same seed."""
    torch.manual_seed(seed)
    hidden = torch.nn.Linear(8, 16)
    return torch.nn.Sequential(hidden, torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def linear(seed: int = 0, dtype: Any = None) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 2, dtype=dtype)


def batch(step: int, rows: int = 32) -> tuple[Any, Any]:
    """The batch of a step, with its labels."""
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(100 + step))
    return x, (x[:, 0] > 0).long()


def losses(model: Any, optimizer: Any, steps: int, clip: float = 1.0, more: Callable[[], Any] = lambda: None) -> Any:
    """The loss of each step of a loop that clips its gradients; `more` is called after each step."""
    found = []
    for step in range(steps):
        x, labels = batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        more()
        found.append(loss.item())
    return found
