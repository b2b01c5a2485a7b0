"""A small model API on top of `dps.layers` and `dps.strategy`: models of layers, compile, fit, evaluate, predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.process.lazy_imports import at_first_use

if TYPE_CHECKING:
    from dps.nn.callbacks import Callback as Callback
    from dps.nn.callbacks import EarlyStopping as EarlyStopping
    from dps.nn.callbacks import History as History
    from dps.nn.callbacks import LambdaCallback as LambdaCallback
    from dps.nn.callbacks import ModelCheckpoint as ModelCheckpoint
    from dps.nn.layer import Add as Add
    from dps.nn.layer import Computation as Computation
    from dps.nn.layer import Concatenate as Concatenate
    from dps.nn.layer import Input as Input
    from dps.nn.layer import Layer as Layer
    from dps.nn.layer import Symbol as Symbol
    from dps.nn.layers import Activation as Activation
    from dps.nn.layers import Dense as Dense
    from dps.nn.layers import Dropout as Dropout
    from dps.nn.layers import Embedding as Embedding
    from dps.nn.layers import Flatten as Flatten
    from dps.nn.model import Model as Model
    from dps.nn.model import Sequential as Sequential
    from dps.nn.roles import train_and_evaluate as train_and_evaluate

_NAMES = {
    "Activation": "layers", "Callback": "callbacks", "EarlyStopping": "callbacks", "History": "callbacks",
    "LambdaCallback": "callbacks", "ModelCheckpoint": "callbacks", "Dense": "layers", "Dropout": "layers",
    "Embedding": "layers", "Flatten": "layers", "Computation": "layer", "Layer": "layer", "Add": "layer",
    "Concatenate": "layer", "Model": "model", "Sequential": "model", "train_and_evaluate": "roles",
    "Input": "layer", "Symbol": "layer",
}  # fmt: skip

__all__ = [*_NAMES]  # noqa: PLE0604
__getattr__ = at_first_use(__name__, _NAMES)
