"""PyTorch models on a ps: an optimizer, an embedding and schedules. The code is in `dps.adapters.torch`."""

from __future__ import annotations

from importlib.util import find_spec

from dps.errors import MissingExtra

if find_spec("torch") is None:
    raise MissingExtra('dps.torch needs PyTorch, which is not installed; get it by: pip install "dps[torch]"')

from dps.adapters.torch.embedding import Embedding  # the check stands before what needs torch
from dps.adapters.torch.optimizer import Optimizer
from dps.adapters.torch.schedule import schedule

__all__ = ["Embedding", "Optimizer", "schedule"]
