"""PyTorch models on a ps: an optimizer, an embedding and schedules. The code is in `dps.adapters.torch`."""

from __future__ import annotations

import importlib

from dps.errors import MissingExtra

try:
    importlib.import_module("torch")
except ImportError as error:
    why = f"dps.torch needs PyTorch, which cannot be imported ({error})"
    raise MissingExtra(f'{why}; get it by: pip install "dps[torch]"') from None

from dps.adapters.torch.embedding import Embedding  # after the check
from dps.adapters.torch.optimizer import Optimizer
from dps.adapters.torch.schedule import schedule

__all__ = ["Embedding", "Optimizer", "schedule"]
