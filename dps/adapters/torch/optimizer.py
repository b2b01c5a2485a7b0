"""A `torch.optim.Optimizer` whose rule, state and rate are on the ps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dps.adapters.torch.model import TorchModel
from dps.adapters.twins import note_opened
from dps.client.session import Session
from dps.cluster.address import is_token
from dps.errors import ConfigError
from dps.process.endings import at_end
from dps.task.server import Server
from dps.training.optimizers import Optimizer as Rule
from dps.training.update_modes import Local

SAME_RATE = 1e-6
"""Rates that differ by less are one rate."""
OF_RULES = frozenset(("weight_decay", "momentum", "betas", "eps", "alpha", "nesterov", "amsgrad", "maximize"))
"""What optimizers of torch read of a group, and the ps have in their rule."""
SAME_DIGITS = 2e-7
"""A share of a rate that is lost where it is rounded to float32."""


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc,unused-ignore]
    """A PyTorch optimizer that runs on the ps.

    `step` sends the gradients, and writes the values that the ps then have into the parameters, in place. The moments
    of the optimizer are on the ps, too. So are the first values: the constructor replaces the parameters by those of
    the run, which are the first worker's or those of a checkpoint.

    The program needs no `close()`: when it ends, pushes on their way are finished and the session is closed, with the
    error where one ended the program. Then the server is stopped. Where nobody else runs the script, a
    `raise SystemExit(3)` counts as a good end; `sys.exit(3)` does not.

    Args:
        named_parameters: Of `model.named_parameters()`: pairs of a name and a parameter. A parameter that has several
            names (tied weights) is one variable. A frozen one is a variable that gets no gradient.
        server: This process's `dps.Server`, or the address of a task of the run.
        optimizer: How the ps turn gradients into updates: one of `dps.optim`, with a rate or a schedule.
        buffers: Of `model.named_buffers()`. Those of floats are variables that get no gradient; each step assigns
            those that have changed before its push. They are changed in place; one that is replaced, as by
            `self.mean = ...`, is not the run's any more, and a warning says so. Counters stay local.
        overlap: `step` leaves its push on its way while the program computes the next gradients, and writes the values
            of about the push of the step before: they lack the step's own gradient, and updates of other workers that
            came since. Not in sync and local mode. An error of a push is raised by the next step, or by `close`,
            which also writes the newest values.
        session: Other arguments of `dps.Session`, such as `update`, `hooks` and `checkpoint_dir`.

    Raises:
        ConfigError: A name twice, a dtype that a ps does not have, a parameter without values, or as of `dps.Session`.
        DpsError: As of `dps.Session`.

    Example:
        ```python
        import torch, dps.torch

        torch.manual_seed(1)
        model = torch.nn.Linear(8, 1)
        opt = dps.torch.Optimizer(model.named_parameters(), server, dps.optim.Adam(0.01))
        for _ in range(3):
            x = torch.randn(16, 8)
            opt.zero_grad()
            loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
            loss.backward()
            opt.step()
        assert opt.rate == 0.01
        opt.close()
        ```
    """

    session: Session
    """The session. It is there until the program ends, or `close`."""

    def __init__(
        self, named_parameters: Iterable[tuple[str, torch.Tensor]], server: Server | str, optimizer: Rule,
        buffers: Iterable[tuple[str, torch.Tensor]] = (), overlap: bool = False, **session: Any,
    ) -> None:  # fmt: skip
        self._model = TorchModel(named_parameters, buffers)
        self._rule = optimizer
        self._round = self._steps_in_round = 0
        self._apart = 0.0
        """By how much the program would have changed the rate, all steps together: each begins with the ps's rate."""
        self._chief = server.target if isinstance(server, Server) else "" if is_token(server) else server
        super().__init__(list(self._model.parameters.items()), {"lr": 0.0})
        self.session = Session(server, self._model.variables(), optimizer=optimizer, **session)
        self._cancel_end = at_end(self._end_program)
        self._mode, self._round = self.session.update, self.session.global_step
        try:
            self._model.connect(self.session)
            if overlap:
                self._model.overlap(self.session)
        except BaseException as error:
            self._leave(error)
            raise
        note_opened(self.session, '[*a.named_parameters(prefix="a"), *b.named_parameters(prefix="b")]')
        self._show_rate()

    @property
    def rate(self) -> float:
        """The rate that the ps have for the next update, as far as this session has heard. Does not block."""
        step = self.session.global_step
        if isinstance(self._mode, Local):
            step = step * self._mode.steps + self._steps_in_round
        return self._rule.rate(step)

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """Push the gradients, and write the newest values into the parameters.

        Blocks; in sync mode until the step of all workers is done, and with `overlap` until the step before is.
        Parameters whose `grad` is None are left out. A step without any gradient counts as one.

        Args:
            closure: Computes the gradients, and returns the loss. None: they are there.
            loss: A number for hooks, such as `dps.LogMetrics` and `dps.NanGuard`. By default what `closure` returns.

        Returns:
            What `closure` returned.

        Raises:
            ConfigError: A rate of `param_groups` is not the ps's, or a number there is of a rule; a frozen parameter
                has a gradient, or a parameter has another dtype or shape than at the beginning.
            ValueError: As of `dps.Session.push`, such as for a NaN.
            DpsError: As of `dps.Session.push`.
        """
        computed = None
        if closure is not None:
            computed = _with_gradients(closure)
        self._check_rates()
        model, session = self._model, self.session
        model.step(session, computed if loss is None else loss)
        self._count(session.global_step)
        self._show_rate()
        return computed

    def assign(self) -> None:
        """Set the parameters on the ps, for all workers, to those of the model.

        For a program that has changed them itself, as by a clip or a projection of weights, the `max_norm` of an
        embedding, or `load_state_dict`. Without it the next step writes the ps's values over such changes. Updates that
        other workers have made since the last step are lost. Blocks; in sync mode the values go with the next step.

        Raises:
            ValueError: A value has NaN or infinity.
            DpsError: As of `dps.Session.assign`.
        """
        self._model.assign_parameters(self.session)

    def should_stop(self) -> bool:
        """Whether the loop should end, as `dps.Session.should_stop`. Does not block.

        Returns:
            True from then on.
        """
        return self.session.should_stop()

    def scheduler(self) -> torch.optim.lr_scheduler.LRScheduler:
        """A scheduler of torch for trainers that want one.

        Returns:
            A scheduler that shows the ps's rate. Its `step` changes nothing on the ps.
        """
        return RateOfPs(self)

    def close(self) -> None:
        """Leave the run now, as the end of the program does. Blocks. A second call does nothing."""
        try:
            self._model.finish(self.session)
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(None)

    def _end_program(self, error: BaseException | None) -> None:
        """The program has ended: with this error, or well."""
        if error is None:
            self.close()
        else:
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """Close the session; `error`: what ended the program, None for a good end."""
        self._cancel_end()
        self.session.__exit__(
            None if error is None else type(error), error, None if error is None else error.__traceback__
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Part of the constructor.

        Args:
            param_group: A group of parameters.

        Raises:
            ConfigError: The optimizer has been made: a run has the variables with which it began.
        """
        if hasattr(self, "session"):
            raise ConfigError(
                "add_param_group: a run has the variables with which it began; give dps.torch.Optimizer all parameters "
                "when it is made, those that are trained later with requires_grad=True and no gradient"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """What names this state. Moments and values are on the ps; `checkpoint_dir` and `session.save()` save them.

        Returns:
            The groups of parameters as of any optimizer, and under "dps" the run's step and the optimizer.
        """
        where = {"step": self.session.global_step, "run": self._chief, "optimizer": self._rule.to_wire()}
        return {**super().state_dict(), "dps": where}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Accept a `state_dict` of this run, or of one that this run was restored from. Nothing of the ps changes.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            ConfigError: It is of another optimizer, or of a step that this run has not reached.
        """
        saved = state_dict.get("dps")
        if saved is None:
            raise ConfigError(
                "load_state_dict: this state is of an optimizer that is not dps.torch.Optimizer; its moments cannot be "
                "given to a ps, which begins with new ones"
            )
        if saved["optimizer"] != self._rule.to_wire():
            raise ConfigError(f"load_state_dict: the state is of {saved['optimizer']}, this run has {self._rule!r}")
        step = self.session.global_step
        if saved["run"] != self._chief and saved["step"] > step:
            raise ConfigError(
                f"load_state_dict: the state is of step {saved['step']}, and this run is at step {step}: values and "
                "moments are on the ps; give dps.torch.Optimizer the checkpoint_dir of the run that saved them"
            )
        super().load_state_dict(state_dict)
        self._show_rate()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "dps.torch.Optimizer: its session can neither be copied nor saved; save opt.state_dict(), or make another "
            "dps.torch.Optimizer where it is needed"
        )

    def _count(self, global_step: int) -> None:
        """A push has been accepted. In local mode the global step counts rounds, and the rate the steps of a worker."""
        self._steps_in_round = self._steps_in_round + 1 if global_step == self._round else 0
        self._round = global_step

    def _show_rate(self) -> None:
        self._shown = self.rate
        for group in self.param_groups:
            group["lr"] = self._shown

    def _check_rates(self) -> None:
        """Raise ConfigError if the program has changed a group's rate, or put a number there that only rules have."""
        for group in self.param_groups:
            if of_rule := OF_RULES & group.keys():
                raise ConfigError(
                    f"param_groups has {min(of_rule)}, which no ps reads: the rule is the ps's, {self._rule!r:.200}; "
                    "give dps.torch.Optimizer another one of dps.optim"
                )
            given = float(group["lr"])
            if given == self._shown:
                continue
            rate = self.rate
            if abs(given - rate) > SAME_DIGITS * abs(rate):  # else it is the same, of float32 or in another order
                self._apart += given - rate
            if abs(self._apart) > _difference(given, rate):
                together = f" ({self._apart:+.3g} in all steps)" if abs(self._apart) > 2 * abs(given - rate) else ""
                rule = type(self._rule).__name__
                raise ConfigError(
                    f'param_groups has the rate {given:g} (group["lr"]), and the ps have {rate:g} at step '
                    f"{self.session.global_step}{together}; the rate is the ps's: give dps.optim.{rule} a "
                    "schedule, such as dps.torch.schedule(make_scheduler, steps, rate) makes of a scheduler of torch"
                )


class RateOfPs(torch.optim.lr_scheduler.LRScheduler):  # type: ignore[misc,unused-ignore]
    """A scheduler whose rate is that of the ps."""

    optimizer: Optimizer

    def get_lr(self) -> list[float | torch.Tensor]:
        return [self.optimizer.rate] * len(self.optimizer.param_groups)


def _difference(one: float, other: float) -> float:
    """How much two rates may differ: 1e-6, and for small ones a thousandth."""
    return min(SAME_RATE, 1e-3 * max(abs(one), abs(other)))


def _with_gradients(closure: Callable[[], Any]) -> Any:
    """The result of a closure, which needs autograd. Its scope is entered only where it makes a difference: a closure
    may call a session, and another task of a simulation run meanwhile."""
    if torch.is_grad_enabled():
        return closure()
    with torch.enable_grad():
        return closure()
