"""Training and evaluation by the role of this task, as programs of an Estimator have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dps.client.following import follow
from dps.errors import ConfigError
from dps.hooks.summary import SummaryWriter
from dps.nn.batches import Batches
from dps.nn.model import Model
from dps.process.telemetry import log
from dps.strategy.default import get_strategy
from dps.task.server import Server
from dps.variables.tree import leaves


def train_and_evaluate(
    model: Model, train: Any, evaluate: Any, *, pause: float = 1.0, timeout: float = 600.0
) -> dict[str, float]:  # fmt: skip
    """Train, evaluate, or serve, by the role of the task whose server the model's strategy was given. Blocks.

    A worker trains, and the first one evaluates when it has. An evaluator (`--job evaluator`) evaluates newer and newer
    values until the run ends: those of checkpoints where the strategy has a checkpoint_dir, else of versions; and
    writes them to `CHECKPOINT_DIR/evaluator`, beside the training's summaries. A ps and a chief serve. Without a server
    the model is trained and evaluated here.

    Args:
        model: A model that is compiled.
        train: What `fit` is given: its arguments by name; or (x, y); or batches.
        evaluate: What `evaluate` is given, in the same forms.
        pause: Of an evaluator: seconds between two looks for newer values.
        timeout: Of an evaluator: the longest wait for newer values, in seconds.

    Returns:
        The last loss and metrics that this task computed: of the evaluation, or of the training where it has none.

    Raises:
        ConfigError: The model is not compiled, or arguments that fit and evaluate do not take.
        DpsError: As of `fit`, and of `dps.follow`.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Dense(1)])
        >>> model.compile(optimizer="sgd", loss="mse")
        >>> x, y = np.ones((8, 2)), np.ones((8, 1))
        >>> train = {"x": x, "y": y, "epochs": 2, "verbose": 0}
        >>> list(dps.nn.train_and_evaluate(model, train, (x, y)))
        ['loss']
        ```
    """
    if not isinstance(model, Model):
        raise ConfigError(f"train_and_evaluate: got {type(model).__name__}, wanted a model of dps.nn")
    server = getattr(model.strategy, "server", None)
    job = server.job if isinstance(server, Server) else "worker"
    if job in ("ps", "chief"):
        assert isinstance(server, Server)
        server.join()
        return {}
    if job == "evaluator":
        assert isinstance(server, Server)
        return _evaluate_repeatedly(model, server, _arguments(evaluate), pause, timeout)
    history = model.fit(**_arguments(train)).history
    if not model.leads:
        return {name: values[-1] for name, values in history.items()}
    found: dict[str, float] = model.evaluate(**{"verbose": 0, **_arguments(evaluate), "return_dict": True})
    return found


def _evaluate_repeatedly(
    model: Model, server: Server, arguments: Mapping[str, Any], pause: float, timeout: float
) -> dict[str, float]:  # fmt: skip
    folder = getattr(model.strategy, "checkpoint_dir", None)
    writer = None if folder is None else SummaryWriter(f"{folder}/evaluator", server.name)
    model.strategy = get_strategy()  # the values are only read; nothing of the run is joined
    data = {name: arguments[name] for name in ("x", "y", "batch_size") if name in arguments}
    model.build_for(Batches("evaluate", **data))
    logs: dict[str, float] = {}
    for step, values in follow(server, folder, pause=pause, timeout=timeout):
        model.set_weights([array for name, array in leaves(values) if name.split("/")[0] in model.parameters])
        logs = model.evaluate(**data, verbose=0, return_dict=True)
        log.info("%s: step %d: %s", server.name, step, ", ".join(f"{name} {v:.4g}" for name, v in logs.items()))
        if writer is not None:
            writer.write(step, **logs)
    return logs


def _arguments(given: Any) -> dict[str, Any]:
    """Arguments by name of (x, y), or of batches."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, tuple) and len(given) == 2:
        return {"x": given[0], "y": given[1]}
    return {"x": given}
