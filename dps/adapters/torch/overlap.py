"""Steps whose push is on its way while the program computes the next gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dps.client.session import Session
from dps.messages.replies import Push, Reply
from dps.variables.tree import memory_of_tensor


class OverlappedSteps:
    """The pushes and values of steps that overlap computing: each step has the values right after the push before it,
    or later ones.

    Not for sync and local mode: ConfigError."""

    def __init__(self, session: Session, names: Sequence[str] | None) -> None:
        """`names`: of the variables that are read; None: all, which are read in place."""
        self._session, self._names = session, names
        self._push: Reply[Push] | None = None
        self._failed = False
        self._values = self._read_ahead()

    def _read_ahead(self) -> Iterator[Any]:
        """Values that are on their way from now on; the first turn gives those of now."""
        values = self._session.prefetch(self._names, in_place=self._names is None)
        next(values, None)  # else the first step would wait for its own push
        return values

    def read_anew(self) -> None:
        """Values were set: those that are on their way lack them. Blocks."""
        self._values.close()  # type: ignore[attr-defined]
        self._values = self._read_ahead()

    def finish_push(self) -> None:
        """Wait for the push of the step before. Raises as its `result`."""
        push, self._push = self._push, None
        if push is not None:
            push.result()

    def push(self, gradients: Mapping[str, torch.Tensor], loss: Any) -> None:
        """Send gradients, of which a copy is made. Blocks while too many pushes are on their way."""
        whole = self._session.gradients() if self._names is None else {}
        sent: dict[str, Any] = {}
        for name, tensor in gradients.items():
            if tensor.layout != torch.strided:
                sent[name] = tensor.clone()
            elif name in whole:
                sent[name] = whole[name]
                sent[name][...] = memory_of_tensor(tensor, name)
            else:
                sent[name] = memory_of_tensor(tensor, name).copy()
        self._push = self._session.push_async(sent, loss)

    def write_values(self, places: Mapping[str, torch.Tensor]) -> bool:
        """Copy the values that were sent for ahead to these tensors of the host; others are sent for. False at the end
        of the loop, once the run is to stop. Blocks."""
        if self._failed:  # an iterator raises its error again
            self.read_anew()
            self._failed = False
        try:
            values = next(self._values, None)
        except BaseException:
            self._failed = True
            raise
        if values is None:
            return False
        for name, place in places.items():
            memory_of_tensor(place, name)[...] = values[name]
        return True

    def close(self) -> None:
        """Wait for the last push; its values are not read ahead any more. Raises as its `result`."""
        self._values.close()  # type: ignore[attr-defined]
        self.finish_push()
