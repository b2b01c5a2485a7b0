"""The tensors of a model beside the variables of a run: what is sent, and where values are written."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch

from dps.adapters.overlap import OverlappedSteps
from dps.adapters.torch.changes import LocalChanges, ReplacedBuffers
from dps.adapters.torch.embedding import TableParameter
from dps.adapters.torch.staging import Staging
from dps.client.session import Session
from dps.errors import ConfigError
from dps.process.telemetry import log
from dps.variables.tree import Variable, memory_of_tensor

TRAINED = torch.float16, torch.bfloat16, torch.float32, torch.float64
"""What a ps trains."""


class TorchModel:
    """The named parameters and buffers of a model. Each is one variable of its name; tied weights have their first.

    Args:
        named_parameters: Of `module.named_parameters()`.
        buffers: Of `module.named_buffers()`. Those that are not floats, such as counters, stay local.

    Raises:
        ConfigError: No pairs of names and parameters, a name twice, or a dtype that a ps does not have.
    """

    def __init__(self, named_parameters: Iterable[Any], buffers: Iterable[Any]) -> None:
        pairs = _pairs(named_parameters, "named_parameters")
        self.parameters = _named(pairs)
        """All parameters, in creation order."""
        if not self.parameters:
            raise ConfigError("named_parameters: got none; wanted those of a model, model.named_parameters()")
        for name, parameter in self.parameters.items():
            _check_trained(name, parameter)
        self._frozen = {name for name, parameter in self.parameters.items() if not parameter.requires_grad}
        floats = [(name, buffer) for name, buffer in _pairs(buffers, "buffers") if buffer.is_floating_point()]
        held = _named(floats)
        for name, buffer in held.items():
            if name in self.parameters:
                raise ConfigError(f"buffers: {name} is the name of a parameter, too; give each its own name")
            _check_trained(name, buffer)
        self.buffers = {name: buffer.detach() for name, buffer in held.items()}
        """Floating-point buffers: values that get no gradient. The memory is theirs, the tensors are this object's."""
        self._replaced = ReplacedBuffers(held)
        self.tables = {name: p for name, p in self.parameters.items() if isinstance(p, TableParameter)}
        """Parameters that stand for tables on the ps."""
        self._dense = {name: t for name, t in (self.parameters | self.buffers).items() if name not in self.tables}
        self._staging = Staging(self._dense)
        self._own = {name: t for name, t in self.parameters.items() if name not in self.tables}
        """The parameters whose values are in the model."""
        self._changes = LocalChanges(self._own)
        self._forms = {name: _form(tensor) for name, tensor in self.parameters.items()}
        self._overlapped: OverlappedSteps | None = None
        self._known: dict[str, torch.Tensor] = {}
        """Copies of the buffers as the ps have them, as far as this worker knows."""

    def variables(self) -> dict[str, Any]:
        """The first values, in the form of `dps.Session(params=...)`."""
        found: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            value = parameter.detach()
            if name in self.tables:
                found[name] = Variable(value, sparse=True)
            else:
                found[name] = Variable(value, trainable=False) if name in self._frozen else value
        return found | {name: Variable(buffer, trainable=False) for name, buffer in self.buffers.items()}

    def connect(self, session: Session) -> None:
        """The session is open: tables look their rows up in it, and all other tensors get its values."""
        for name, table in self.tables.items():
            table.connect(session, name)
        self.pull(session)

    def gradients(self) -> dict[str, Any]:
        """The gradients in memory that a session can read, until the next call of this object.

        Raises:
            ConfigError: A frozen parameter has a gradient.
        """
        found: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if name in self._frozen or not parameter.requires_grad:
                since = "was frozen when the optimizer was made" if name in self._frozen else "is frozen"
                raise ConfigError(
                    f"{name} {since} (requires_grad=False) and has a gradient, which a ps would not apply; set its "
                    "grad to None, or make it trainable before dps.torch.Optimizer"
                )
            found[name] = gradient
        return self._staging.to_host(found)

    def _assign_buffers(self, session: Session) -> Collection[str]:
        """Assign the buffers that the program has changed since the last step, and return their names. Blocks in async
        mode."""
        known = self._known
        changed = {name: b for name, b in self.buffers.items() if name not in known or not _is_same(b, known[name])}
        if changed:
            session.assign(self._staging.to_host(changed))
        return changed

    def assign_parameters(self, session: Session) -> None:
        """Set the parameters on the ps to those of the model. Blocks in async mode."""
        session.assign(self._staging.to_host({name: tensor.detach() for name, tensor in self._own.items()}))
        self._changes.note_values()
        if self._overlapped is not None:
            self._overlapped.read_anew()

    def _warn_of_changes(self, session: Session) -> None:
        if name := self._replaced.find():
            log.warning(
                "%s: the model has another tensor or other memory in the place of the buffer %s, as self.%s = ... and "
                "model.to() put there: the ps, the other workers and checkpoints do not get its values; change it in "
                "place, as self.%s.copy_(...), and move the model before dps.torch.Optimizer; this is said once",
                session.name, name, *[name.rpartition(".")[2]] * 2,
            )  # fmt: skip
        if name := self._changes.find():
            self._check_forms()
            log.warning(
                "%s: the program has changed the parameter %s since the last step, and each step replaces such changes "
                "by the values of the ps (a clip or projection of weights, max_norm, load_state_dict), unless the "
                "program has put them back; opt.assign() after a change sets the values of the ps for all workers; "
                "this is said once",
                session.name, name,
            )  # fmt: skip

    def _check_forms(self) -> None:
        """Raise ConfigError if the program has given a parameter another dtype or shape."""
        for name, tensor in self.parameters.items():
            if (form := _form(tensor)) != self._forms[name]:
                raise ConfigError(
                    f"{name} is {_shown(form)} now, and was {_shown(self._forms[name])} when dps.torch.Optimizer was "
                    "made: a run has the variables with which it began; call model.half(), .double() and the like "
                    "before dps.torch.Optimizer, or compute in 16 bits under torch.autocast"
                )

    def _note_values(self) -> None:
        """The tensors have the values of the ps."""
        self._changes.note_values()
        for name, buffer in self.buffers.items():
            self._known[name] = buffer.detach().clone()

    def step(self, session: Session, loss: Any) -> None:
        """Assign changed buffers, push the gradients, and write the newest values into the tensors, in place. Blocks.

        In one round trip, unless a table should not come with the values, or gradients and values have the same
        memory of the host. With overlap the push is left on its way, and the values are those of the push before."""
        assigned = self._assign_buffers(session)
        gradients = self.gradients()
        self._warn_of_changes(session)
        try:
            if self._overlapped is not None:
                self._step_overlapped(self._overlapped, session, gradients, loss, assigned)
            elif self.tables or not self._staging.are_direct():
                session.push(gradients, loss)
                self.pull(session)
            else:
                session.step(gradients, loss, out=self._staging.places())
                self._staging.to_device()
                self._note_values()
        except BaseException as error:
            self._staging.forget()  # a push that failed may still read the memory of `gradients`
            if isinstance(error, ValueError):
                self._check_forms()
            raise

    def _step_overlapped(
        self, steps: OverlappedSteps, session: Session, gradients: dict[str, torch.Tensor], loss: Any,
        assigned: Collection[str],
    ) -> None:  # fmt: skip
        steps.finish_push()
        steps.push(self._copied(session, gradients), loss)
        if self._dense:
            values = steps.take_values()
            if values is None:
                self.pull(session)
                return
            for name, place in self._staging.places().items():
                if name not in assigned:  # of those the values of the step before
                    memory_of_tensor(place, name)[...] = values[name]
            self._staging.to_device()
            self._note_values()

    def _copied(self, session: Session, gradients: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Gradients in memory that the program does not have: the session's, where there is no table."""
        whole = {} if self.tables else session.gradients()
        copies: dict[str, Any] = {}
        for name, tensor in gradients.items():
            if tensor.layout != torch.strided:
                copies[name] = tensor.clone()
            elif name in whole:
                copies[name] = whole[name]
                copies[name][...] = memory_of_tensor(tensor, name)
            else:
                copies[name] = memory_of_tensor(tensor, name).copy()
        return copies

    def overlap(self, session: Session) -> None:
        """From now on the push of each step is on its way while the program computes. Raises as OverlappedSteps."""
        self._overlapped = OverlappedSteps(session, list(self._dense) if self.tables else None, not self.tables)

    def finish(self, session: Session) -> None:
        """No step is made any more: the tensors get the values after the last one. Blocks. Raises as `step`."""
        if self._overlapped is not None:
            steps, self._overlapped = self._overlapped, None
            steps.close()
            self.pull(session)

    def pull(self, session: Session) -> None:
        """Write the newest values into the tensors, in place. Blocks."""
        if self._dense:
            names = list(self._dense) if self.tables else None
            session.pull(names, out=self._staging.places())
            self._staging.to_device()
            self._note_values()


def _pairs(given: Iterable[Any], argument: str) -> list[tuple[str, torch.Tensor]]:
    found = list(given)
    for pair in found:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            call = f"model.named_{argument.removeprefix('named_')}()"
            raise ConfigError(
                f"{argument}: got {type(pair).__name__}, wanted pairs of a name and a tensor; give {call}"
            )
    return found


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same elements, of which some may be NaN."""
    if one.shape != other.shape:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _named(pairs: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors by name; one that has several names by the first. ConfigError for two tensors of a name."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in pairs:
        if name in found and found[name] is not tensor:
            raise ConfigError(
                f"named_parameters: got the name {name} twice; give each model a prefix, as "
                'model.named_parameters(prefix="encoder")'
            )
        if id(tensor) not in seen:
            found[name] = tensor
            seen.add(id(tensor))
    return found


def _form(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape


def _shown(form: tuple[torch.dtype, torch.Size]) -> str:
    return f"{form[0]} {list(form[1])}"


def _check_trained(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_meta:
        raise ConfigError(
            f"{name} is on the meta device and has no values; give it some before dps.torch.Optimizer, by "
            'model.to_empty(device="cpu") and first values, or by load_state_dict(state, assign=True)'
        )
    if tensor.dtype not in TRAINED:
        raise ConfigError(
            f"{name} is of {tensor.dtype}, which a ps does not have; wanted float16, bfloat16, float32 or float64"
        )
