"""Copies tensors to memory that a session reads and writes, and values back.

A session reads and fills tensors on the CPU. Those of an accelerator are copied through pinned memory, on a stream of
their own, so that what the accelerator computes meanwhile is not in their way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

Pairs = Iterable[tuple[torch.Tensor, torch.Tensor]]
"""Tensors to read, each with one of the same shape and dtype to write."""


class Copies:
    """Copies between the memory of a device and memory of the host. This one blocks; it suits every device."""

    def buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Contiguous memory of the host."""
        return torch.empty(like.shape, dtype=like.dtype)

    def to_host(self, pairs: Pairs) -> None:
        """Copy what has been computed. Blocks until the host has it."""
        for source, target in pairs:
            target.copy_(source.detach())

    def to_device(self, pairs: Pairs) -> None:
        """Copy values into tensors of the device. What is computed after this call has them; `to_host` and `finish`
        wait for it."""
        for source, target in pairs:
            target.detach().copy_(source)

    def finish(self) -> None:
        """Block until the device has read the host's memory."""


class CudaCopies(Copies):
    """Copies to and from a GPU on a stream of their own, through pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]

    def buffer(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def to_host(self, pairs: Pairs) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for source, target in pairs:
                target.copy_(source.detach(), non_blocking=True)
        self._stream.synchronize()

    def to_device(self, pairs: Pairs) -> None:
        computing = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(computing)  # it may still read the values of before
        with torch.cuda.stream(self._stream):
            for source, target in pairs:
                target.detach().copy_(source, non_blocking=True)
        computing.wait_stream(self._stream)

    def finish(self) -> None:
        self._stream.synchronize()


def copies_for(device: torch.device) -> Copies:
    """The copies that suit a device."""
    return CudaCopies(device) if device.type == "cuda" else Copies()


def is_direct(tensor: torch.Tensor) -> bool:
    """Whether a session can write to a tensor's own memory."""
    return bool(tensor.device.type == "cpu" and (tensor.is_contiguous() or tensor.dtype != torch.bfloat16))


class Staging:
    """Memory of the host for tensors that a session cannot write to. It is made when it is needed first."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._buffers: dict[str, torch.Tensor] = {}
        """By name: first a gradient, which a push sends; then the value that the pull after it has written."""
        self._copies: dict[torch.device, Copies] = {}

    def to_host(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors in the host's memory: those that are there as they are, copies of the others. Sparse ones are
        left to the session, which takes their rows. Blocks."""
        here = dict(tensors)
        pairs: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for name, tensor in tensors.items():
            if tensor.layout == torch.strided and not is_direct(tensor):
                here[name] = self._buffer(name, tensor)
                pairs.setdefault(tensor.device, []).append((tensor, here[name]))
        for device, those in pairs.items():
            self._of(device).to_host(those)
        return here

    def are_direct(self) -> bool:
        """Whether a session can write to all of the tensors, so that no other memory is needed."""
        return all(map(is_direct, self._tensors.values()))

    def places(self) -> dict[str, torch.Tensor]:
        """Where a pull writes the values: the tensors, or memory for them. Blocks while a device still reads it."""
        for copies in self._copies.values():
            copies.finish()
        return {name: t.detach() if is_direct(t) else self._buffer(name, t) for name, t in self._tensors.items()}

    def to_device(self) -> None:
        """A pull has written to `places`: the tensors of other devices get their values."""
        pairs: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        written = []
        for name, tensor in self._tensors.items():
            if is_direct(tensor):
                written.append(tensor)
            else:
                pairs.setdefault(tensor.device, []).append((self._buffer(name, tensor), tensor))
        for device, those in pairs.items():
            self._of(device).to_device(those)
        torch.autograd.graph.increment_version(written)  # autograd refuses a backward pass through replaced values

    def forget(self) -> None:
        """Leave the memory to whoever still reads it."""
        self._buffers = {}

    def _buffer(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        found = self._buffers.get(name)
        if found is None or found.dtype != tensor.dtype or found.shape != tensor.shape:
            found = self._buffers[name] = self._of(tensor.device).buffer(tensor)
        return found

    def _of(self, device: torch.device) -> Copies:
        if device not in self._copies:
            self._copies[device] = copies_for(device)
        return self._copies[device]
