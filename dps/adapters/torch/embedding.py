"""An embedding whose table is on the ps: it looks rows up, and pushes rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dps.client.session import Session
from dps.errors import ConfigError
from dps.training.definition import whole_number


class TableParameter(torch.nn.Parameter):  # type: ignore[misc,unused-ignore]
    """A parameter that stands for a table on the ps, so that `named_parameters()` brings it.

    It has the first values until the optimizer is made. Then it has the shape of the table and no values.
    """

    _session: Session | None = None
    _name = ""

    def connect(self, session: Session, name: str) -> None:
        """The ps has the table from now on. The memory of the first values is let go. ConfigError if the table had no
        values and the run began with it."""
        if not self.has_values and self.shape[0] and np.isnan(session.lookup(name, [0]).astype(np.float32)).all():
            raise ConfigError(
                f"{name} has no values: its table was on the ps of another dps.torch.Optimizer, and this run begins "
                "with it; make another dps.torch.Embedding and load its values, or give the checkpoint_dir of that run"
            )
        self._session, self._name = session, name
        nothing = torch.full((), float("nan"), dtype=self.dtype, device=self.device)
        self.data = nothing.expand(self.shape)

    @property
    def has_values(self) -> bool:
        """Whether the values are here, and not on a ps."""
        return self.numel() < 2 or any(self.stride())

    def __deepcopy__(self, memo: dict[int, Any]) -> TableParameter:
        """A copy of the values; of a table on the ps one without values, and as little memory."""
        values = self.data.clone() if self.has_values else self.data[:1, :1].clone().expand(self.shape)
        copied: TableParameter = memo.setdefault(id(self), TableParameter(values, self.requires_grad))
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a copy: torch would make a plain parameter of it, and save the session."""
        return TableParameter, (self.data, self.requires_grad)

    def check_loaded(self, name: str, values: torch.Tensor) -> None:
        """Raise ConfigError for values of load_state_dict that cannot be the table's. `name`: in the state."""
        if self._session is not None:
            raise ConfigError(
                f"load_state_dict: {name} is a table on the ps since dps.torch.Optimizer was made; load it before, or "
                f"set all its rows by opt.session.assign({{{self._name!r}: values}}) and leave it out of the state "
                "(strict=False)"
            )
        if values.numel() and not values.is_meta and values.isnan().all():
            raise ConfigError(
                f"load_state_dict: the state has no values of {name}: it was saved while the table was on the ps; a "
                "checkpoint (checkpoint_dir) has them, or session.pull() in the run that saved it"
            )

    def look_up(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the table, of shape (*indices.shape, dim), on the device of the indices. Blocks."""
        if self._session is None:
            if not self.has_values:
                raise ConfigError(
                    "this dps.torch.Embedding is a copy of one whose table is on the ps, and has no values: look rows "
                    "up by the one that was copied; copy a model before dps.torch.Optimizer is made"
                )
            raise ConfigError(
                "dps.torch.Embedding looks its rows up on the ps; make a dps.torch.Optimizer with the model's "
                "named_parameters() before the first forward pass"
            )
        rows = self._session.lookup(self._name, indices.detach().cpu().numpy())
        return _tensor_of(rows, self.dtype).to(indices.device)


class Embedding(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """A table of vectors on the ps, of which a forward pass looks up the rows that it needs.

    It takes the place of `torch.nn.Embedding(rows, dim, sparse=True)`: a step moves the rows of its batch, and the
    gradient of `weight` is sparse. The first values are drawn as there.

    `weight` stands for the table: it has the first values until `dps.torch.Optimizer` is made with it, and none after
    that (they read as NaN). `session.lookup(name, rows)` has them. A deep copy of it has no values then, either.

    Args:
        rows: The number of rows.
        dim: The length of a row.
        dtype: The dtype of the table. None: torch's default.

    Raises:
        ConfigError: A size that is no whole number, or a forward pass before there is a `dps.torch.Optimizer` of the
            table.

    Example:
        ```python
        import torch, dps.torch

        table = dps.torch.Embedding(1000, 4)
        sgd = dps.optim.SGD(0.1)
        opt = dps.torch.Optimizer(table.named_parameters(), server, sgd)
        vectors = table(torch.tensor([[3, 7], [7, 1]]))
        assert vectors.shape == (2, 2, 4)
        vectors.sum().backward()
        opt.step()
        opt.close()
        ```
    """

    weight: TableParameter

    def __init__(self, rows: int, dim: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.rows = whole_number("dps.torch.Embedding: got rows=", rows, 0)
        self.dim = whole_number("dps.torch.Embedding: got dim=", dim, 1)
        self.weight = TableParameter(torch.empty(rows, dim, dtype=dtype))
        with torch.no_grad():
            self.weight.normal_()

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Look rows up on the ps. Blocks.

        Args:
            indices: Row numbers, integers of any shape of one dimension and more.

        Returns:
            Their rows, of shape (*indices.shape, dim), on the device of `indices`.
        """
        rows = self.weight.look_up(indices)
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            return rows
        return _Rows.apply(self.weight, rows, indices)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Refuse values for a table that is on the ps, and a state without the table's values."""
        name, given = f"{prefix}weight", state_dict.get(f"{prefix}weight")
        if given is not None and given.data_ptr() != self.weight.data_ptr():
            self.weight.check_loaded(name, given)
        super()._load_from_state_dict(state_dict, prefix, *more)
        if not isinstance(self.weight, TableParameter):  # of load_state_dict(assign=True)
            self.weight = TableParameter(self.weight.detach())

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.dim}"


class _Rows(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """Rows that were looked up, as a function of the table: its gradient has those rows only."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.shape = table.shape
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        values = gradients[0].reshape(-1, ctx.shape[-1])
        sparse = torch.sparse_coo_tensor(indices.reshape(1, -1), values, ctx.shape, check_invariants=False)
        return sparse, None, None


def _tensor_of(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """An array's memory as a tensor. numpy has no bfloat16 of its own."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view("int16")).view(dtype)
    return torch.from_numpy(array)
