"""The model: compile, fit, evaluate and predict, under the strategy in whose scope it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dps.errors import ConfigError
from dps.hooks.hook import Hook
from dps.nn.batches import Batches, ModelBatch, name_source
from dps.nn.callbacks import Callback, History
from dps.nn.compiled import CompileSettings
from dps.nn.layer import Layer
from dps.nn.layered import LayeredModel
from dps.nn.network import BuiltModel
from dps.strategy.default import get_strategy, has_strategy
from dps.strategy.values import PerReplica
from dps.training.definition import whole_number
from dps.transport.current import runtime


class Model(LayeredModel):
    """A model of layers: functional, from `inputs` to `outputs`; or subclassed, with a `call` that composes layers.

    The layers compute on the device of the caller, or of each replica, with the kernels of `dps.layers`. The strategy
    in whose scope the model is made keeps its parameters and distributes its steps: global batches are split between
    the replicas in sync, losses are divided by the size of the global batch, and gradients are summed.

    Args:
        inputs: Of a functional model: what `dps.nn.Input` returned, or a list or dict of such.
        outputs: Of a functional model: what its last layer returned.
        name: Its name in `summary`. None: that of its class.
        dtype: "float32" or "float64", for inputs, parameters and gradients.
        seed: Chooses the first values and the zeros of `Dropout`; the same on all workers.

    Raises:
        ConfigError: Another dtype, or inputs without outputs.

    Example:
        ```pycon
        >>> class TwoLayers(dps.nn.Model):
        ...     def __init__(self):
        ...         super().__init__(seed=1)
        ...         self.hidden = dps.nn.Dense(8, activation="tanh")
        ...         self.out = dps.nn.Dense(3)
        ...     def call(self, inputs):
        ...         return self.out(self.hidden(inputs))
        >>> model = TwoLayers()
        >>> model.compile(dps.optim.SGD(0.5), "sparse_categorical_crossentropy", ["accuracy"])
        >>> x, y = np.eye(3), np.arange(3)
        >>> history = model.fit(x, y, epochs=20, verbose=0)
        >>> model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]
        1.0
        ```
    """

    def compile(self, optimizer: Any = "sgd", loss: Any = "mse", metrics: Sequence[Any] = ()) -> None:
        """Say how the model is trained.

        Args:
            optimizer: One of `dps.optim`, or "sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw" or "ftrl".
            loss: "mse", "mae", "binary_crossentropy", "categorical_crossentropy" or "sparse_categorical_crossentropy",
                the last three of scores (logits); or a function of (y, out) that returns the losses (batch,) and the
                gradient of each example's loss by `out`.
            metrics: "accuracy", which is that of the loss, "sparse_categorical_accuracy", "categorical_accuracy",
                "binary_accuracy", or losses; or functions of (y, out) that return a number for each example.

        Raises:
            ConfigError: Something unknown, another strategy's scope around, or the model is trained already.
        """
        if has_strategy() and get_strategy() is not self.strategy:
            raise ConfigError(
                f"compile: got the scope of {get_strategy()!r}, wanted that of {self.strategy!r}, which made the model"
            )
        if self._variables is not None:
            raise ConfigError(
                "compile: the model is trained already, and its strategy keeps the slots; make another one"
            )
        self._compiled = CompileSettings(optimizer, loss, metrics)

    def fit(
        self, x: Any, y: Any = None, *, epochs: int = 1, batch_size: int | None = None, validation_data: Any = None,
        callbacks: Sequence[Callback | Hook] = (), shuffle: bool = True, seed: int | None = None, verbose: int = 1,
        steps_per_epoch: int | None = None, initial_epoch: int = 0, validation_split: float | None = None,
    ) -> History:  # fmt: skip
        """Train. Blocks.

        Args:
            x: The inputs: an array, or a dict or list of arrays where the model has several; without `y` an iterable
                of global batches (x, y), such as a dataset of `dps.data`, which is read anew in each epoch.
            y: The targets, an array.
            epochs: The number of the last epoch.
            batch_size: Examples of a global batch. None: 32.
            validation_data: (x, y), or batches, that the model is evaluated on after each epoch.
            callbacks: Instances of `Callback`, and hooks. Hooks find the numbers of the last epoch among the scalars of
                the session: "epoch_loss" and so on.
            shuffle: Whether arrays are shuffled, in another order in each epoch.
            seed: Chooses the orders, which have to be the same on all workers in sync. None: the model's.
            verbose: 0: nothing is printed; 1: a bar for each epoch; 2: a line for each epoch.
            steps_per_epoch: How many batches are an epoch. Epochs of an iterable then go on where the last one ended.
            initial_epoch: The number of the first epoch, from 0.
            validation_split: The share of the examples, such as 0.2, that the model is evaluated on in place of
                `validation_data`, and not trained on: the last ones of the arrays, before they are shuffled.

        Returns:
            The numbers of each epoch, in `history`.

        Raises:
            ConfigError: `compile` was not called, or an argument is wrong.
            DataError: Inputs or targets that do not fit the model, or data that ends early.
        """
        # More than 9 parameters: they are those that Keras users know.
        compiled = self._require_compiled("fit")
        batches, validation = Batches("fit", x, y, batch_size), self._validation_batches(validation_data, batch_size)
        if validation_split is not None:
            if validation is not None:
                raise ConfigError("fit: got validation_split and validation_data, wanted one of them")
            validation = batches.split_validation(validation_split)
        if steps_per_epoch is not None:
            whole_number("fit: steps_per_epoch: got ", steps_per_epoch, 1)
            batches.continue_pass()
        epochs = whole_number("fit: epochs: got ", epochs, 1)
        network = self.build_for(batches)
        network.check_inputs(batches.peek_batch().xs, "fit: x")
        if validation is not None:
            network.check_inputs(validation.peek_batch().xs, f"{validation.what}: x")
        history = History()
        own, hooks = _callbacks(callbacks)
        own = [history, *own, *self._progress_callbacks(verbose, epochs, steps_per_epoch or batches.steps)]
        self.stop_training = False
        for callback in own:
            callback.set_model(self)
        from dps.nn.training import Training

        order = self.seed if seed is None else seed
        training = Training(network, compiled, self.strategy, self._kept(), own, hooks)
        training.run_epochs(
            batches, range(initial_epoch, epochs), steps_per_epoch, order if shuffle else None,
            lambda: {f"val_{name}": value for name, value in self._evaluate_batches(validation).items()},
            lambda: self.stop_training,
        )  # fmt: skip
        return history

    def evaluate(
        self, x: Any, y: Any = None, *, batch_size: int | None = None, verbose: int = 1, return_dict: bool = False
    ) -> Any:  # fmt: skip
        """Loss and metrics of data. Blocks. Each worker evaluates all that it is given.

        Args:
            x: As of `fit`.
            y: As of `fit`.
            batch_size: As of `fit`.
            verbose: 0: nothing is printed; else a line.
            return_dict: Whether a dict by name is returned.

        Returns:
            The loss; with metrics a list of loss and metrics.

        Raises:
            ConfigError: `compile` was not called, or an argument is wrong.
            DataError: Data that does not fit the model.
        """
        self._require_compiled("evaluate")
        batches = Batches("evaluate", x, y, batch_size)
        self.build_for(batches).check_inputs(batches.peek_batch().xs, "evaluate: x")
        since, seen = runtime().now(), [0]
        logs = self._evaluate_batches(batches, seen)
        if verbose and self.leads:
            from dps.nn.callbacks import line

            print(line(seen[0], seen[0], runtime().now() - since, logs, verbose == 1), flush=True)
        if return_dict:
            return logs
        return logs["loss"] if len(logs) == 1 else list(logs.values())

    def predict(self, x: Any, *, batch_size: int | None = None) -> Any:
        """The model's outputs. Blocks. It works before `compile`, too.

        Args:
            x: The inputs: as of `fit`, or an iterable of batches of inputs.
            batch_size: How many examples at a time; it makes no difference but for memory. None: 32.

        Returns:
            An array (examples, ...).

        Raises:
            DataError: Inputs that do not fit the model.
        """
        batches = Batches("predict", x, batch_size=batch_size, targets=False)
        network = self.build_for(batches)
        network.check_inputs(batches.peek_batch().xs, "predict: x")
        values = self._values()
        return np.concatenate([self._compute_outputs(network, values, batch) for batch in batches.epoch()])

    def _validation_batches(self, data: Any, batch_size: int | None) -> Batches | None:
        if data is None:
            return None
        x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
        return Batches("validation_data", x, y, batch_size if y is not None else None)

    def _progress_callbacks(self, verbose: int, epochs: int, steps: int | None) -> list[Callback]:
        if not verbose or self.strategy.first_replica:
            return []
        from dps.nn.callbacks import EpochProgress

        return [EpochProgress(verbose, epochs, steps)]

    def _evaluate_batches(self, batches: Batches | None, seen: list[int] | None = None) -> dict[str, float]:
        """Loss and metrics over batches; none without batches. `seen`: gets the number of batches."""
        if batches is None:
            return {}
        network, compiled, values = self._built, self._require_compiled("evaluate"), self._values()
        sums = compiled.nothing()
        for number, batch in enumerate(batches.epoch(), 1):
            network.check_inputs(batch.xs, f"{batches.what}: batch {number}")
            out = self._compute_outputs(network, values, batch)
            with name_source(f"{batches.what}: batch {number}"):
                sums += compiled.sums(batch.y, out, compiled.loss(batch.y, out)[0])
            if seen is not None:
                seen[0] = number
        return compiled.logs(sums)

    def _compute_outputs(self, network: BuiltModel, values: Any, batch: ModelBatch) -> Any:
        """The outputs of a batch, each replica of this process having computed its part."""
        from dps.nn.training import parts_of

        strategy = self.strategy
        parts = PerReplica(parts_of(batch, strategy.local_replicas))
        found = strategy.run(lambda part: network.compute_outputs(values, part.xs), args=(parts,))
        return np.concatenate(strategy.local_results(found))


def _callbacks(callbacks: Sequence[Any]) -> tuple[list[Callback], list[Hook]]:
    if isinstance(callbacks, Callback | Hook):
        callbacks = [callbacks]
    for callback in callbacks:
        if not isinstance(callback, Callback | Hook):
            raise ConfigError(f"fit: callbacks: got {callback!r:.60}, wanted instances of dps.nn.Callback or dps.Hook")
    hooks = [callback for callback in callbacks if isinstance(callback, Hook)]
    return [callback for callback in callbacks if isinstance(callback, Callback)], hooks


class Sequential(Model):
    """Layers one after the other.

    Args:
        layers: The layers.
        name: As of `Model`.
        dtype: As of `Model`.
        seed: As of `Model`.

    Raises:
        ConfigError: Something else than layers.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([
        ...     dps.nn.Dense(8, activation="relu", input_shape=(4,)),
        ...     dps.nn.Dense(3),
        ... ])
        >>> model.summary()
        Model: 'sequential'
        Layer (type)     Output Shape  Param #
        ========================================
        dense (Dense)    (batch, 8)    40
        dense_1 (Dense)  (batch, 3)    27
        ========================================
        Total params: 67
        ```
    """

    def __init__(
        self, layers: Sequence[Layer] = (), name: str | None = None, dtype: str = "float32", seed: int = 0
    ) -> None:  # fmt: skip
        super().__init__(name=name, dtype=dtype, seed=seed)
        self._row: list[Layer] = []
        for layer in layers:
            self.add(layer)

    def add(self, layer: Layer) -> None:
        """Put a layer at the end.

        Args:
            layer: The layer.

        Raises:
            ConfigError: No layer, or the model is built already.
        """
        if not isinstance(layer, Layer):
            raise ConfigError(f"Sequential: got {layer!r:.60}, wanted layers of dps.nn")
        if self.built:
            raise ConfigError("Sequential: add: the model is built already; add all layers first")
        self._row.append(layer)

    def call(self, inputs: Any) -> Any:
        """The layers one after the other.

        Args:
            inputs: The symbol of the input.

        Returns:
            What the last layer returned.
        """
        for layer in self._row:
            inputs = layer(inputs)
        return inputs

    def _known_shapes(self) -> Any:
        return self._row[0].input_shape if self._row else None
