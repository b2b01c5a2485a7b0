"""A small model API on top of `dps.layers` and `dps.strategy`: models of layers, compile, fit, evaluate, predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.parts import at_first_use

if TYPE_CHECKING:
    from dps.nn.activation import Activation as Activation
    from dps.nn.callbacks import Callback as Callback
    from dps.nn.callbacks import EarlyStopping as EarlyStopping
    from dps.nn.callbacks import History as History
    from dps.nn.callbacks import LambdaCallback as LambdaCallback
    from dps.nn.callbacks import ModelCheckpoint as ModelCheckpoint
    from dps.nn.dense import Dense as Dense
    from dps.nn.dropout import Dropout as Dropout
    from dps.nn.embedding import Embedding as Embedding
    from dps.nn.flatten import Flatten as Flatten
    from dps.nn.layer import Computation as Computation
    from dps.nn.layer import Layer as Layer
    from dps.nn.merging import Add as Add
    from dps.nn.merging import Concatenate as Concatenate
    from dps.nn.model import Model as Model
    from dps.nn.roles import train_and_evaluate as train_and_evaluate
    from dps.nn.sequential import Sequential as Sequential
    from dps.nn.symbol import Input as Input
    from dps.nn.symbol import Symbol as Symbol

_NAMES = {
    "Activation": "activation", "Callback": "callbacks", "EarlyStopping": "callbacks", "History": "callbacks",
    "LambdaCallback": "callbacks", "ModelCheckpoint": "callbacks", "Dense": "dense", "Dropout": "dropout",
    "Embedding": "embedding", "Flatten": "flatten", "Computation": "layer", "Layer": "layer", "Add": "merging",
    "Concatenate": "merging", "Model": "model", "Sequential": "sequential", "train_and_evaluate": "roles",
    "Input": "symbol", "Symbol": "symbol",
}  # fmt: skip

__all__ = [*_NAMES]  # noqa: PLE0604
__getattr__ = at_first_use(__name__, _NAMES)
