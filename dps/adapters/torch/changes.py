"""Notices that a program has changed parameters, which the next step would undo, or has replaced buffers."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch

LOOKS = 5
"""After how many steps the values themselves are looked at, for a change of `parameter.data` leaves no other trace."""
SAMPLED = 64
"""How many elements of each parameter are looked at."""


class LocalChanges:
    """What has changed in place since `note_values`: by a clip or a projection of weights, by the `max_norm` of an
    embedding, by `load_state_dict`."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._versions: list[int] = []
        self._samples: list[torch.Tensor] = []
        self._looks = LOOKS
        self.is_told = False
        """Whether a change was found; then nothing is looked for any more."""

    def note_values(self) -> None:
        """The tensors have the values of the ps, or these are about to be assigned."""
        if not self.is_told:
            self._versions = [tensor._version for tensor in self._tensors.values()]
            self._samples = [_sample(tensor) for tensor in self._tensors.values()] if self._looks else []
            self._looks -= self._looks > 0

    def find(self) -> str:
        """The name of the first tensor that has changed since; "" if there is none, or one was found before."""
        if self.is_told:
            return ""
        for name, tensor, version in zip(self._tensors, self._tensors.values(), self._versions, strict=True):
            if tensor._version != version:
                return self._end_looks(name)
        for name, tensor, sample in zip(self._tensors, self._tensors.values(), self._samples, strict=False):
            if not torch.equal(_sample(tensor).nan_to_num(), sample.nan_to_num()):
                return self._end_looks(name)
        return ""

    def _end_looks(self, name: str) -> str:
        self.is_told, self._versions, self._samples = True, [], []
        return name


class ReplacedBuffers:
    """Notices that a module has another tensor in the place of a buffer: the one that it had is gone, or has other
    memory. Views are not watched: a program may make them for the call alone."""

    def __init__(self, buffers: Mapping[str, torch.Tensor]) -> None:
        own = {name: buffer for name, buffer in buffers.items() if not buffer._is_view()}
        self._had = {name: (weakref.ref(buffer), buffer.data_ptr()) for name, buffer in own.items()}

    def find(self) -> str:
        """The name of the first buffer that was replaced; "" if there is none, or one was found before."""
        for name, (had, memory) in self._had.items():
            if (buffer := had()) is None or buffer.data_ptr() != memory:
                self._had = {}
                return name
        return ""


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of some elements."""
    if tensor.numel() == 0 or tensor.device.type != "cpu":  # a copy from an accelerator would wait for it
        return torch.empty(0)
    strides = [slice(None, None, max(1, size * tensor.dim() // SAMPLED)) for size in tensor.shape]
    return tensor.detach()[tuple(strides)].clone()
