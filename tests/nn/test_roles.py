"""train_and_evaluate: by the role of the task, also beside a run, from versions and from checkpoints."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from tests.in_process import cluster
from tests.nn.text import data, two_layers


def model_of(strategy: Any) -> Any:
    with strategy.scope():
        model = two_layers()
    model.compile(dps.optim.SGD(0.2), "sparse_categorical_crossentropy", ["accuracy"])
    return model


def told_of(call: Callable[..., Any], event: threading.Event) -> Callable[..., Any]:
    """The call, after which the event is set."""

    def calling(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        event.set()
        return result

    return calling


def test_without_a_server_it_trains_and_then_evaluates() -> None:
    x, y = data()
    model = model_of(dps.strategy.get_strategy())
    found = dps.nn.train_and_evaluate(model, {"x": x, "y": y, "epochs": 3, "verbose": 0}, (x, y))
    assert found == model.evaluate(x, y, verbose=0, return_dict=True) and set(found) == {"loss", "accuracy"}
    batches = dps.data.from_arrays(x, y).batch(10)
    assert set(dps.nn.train_and_evaluate(model, {"x": batches, "verbose": 0}, batches)) == {"loss", "accuracy"}
    with pytest.raises(ConfigError, match="train_and_evaluate: got str, wanted a model"):
        dps.nn.train_and_evaluate("model", (x, y), (x, y))  # type: ignore[arg-type]


def in_sync(server: Any) -> Any:
    x, y = data()
    with dps.strategy.ParameterServer(server, dps.SyncReplicas(2, 2)) as strategy:
        train = {"x": x, "y": y, "epochs": 2, "verbose": 0}
        return dps.nn.train_and_evaluate(model_of(strategy), train, (x, y))


def test_workers_train_and_the_first_evaluates() -> None:
    run = dps.simulate(in_sync, workers=2)
    assert not run.errors, run.errors
    first, second = run.results
    assert first["loss"] < second["loss"]  # evaluated after the training, and the mean over the last epoch


@pytest.mark.parametrize("checkpoints", [True, False])
def test_an_evaluator_follows_the_run_and_ps_and_chief_serve(tmp_path: Path, checkpoints: bool) -> None:
    x, y = data()
    folder = {"checkpoint_dir": str(tmp_path / "run")} if checkpoints else {}
    logs: dict[str, Any] = {}
    evaluated = threading.Event()

    class WaitsForTheEvaluator(dps.Hook):
        """Without checkpoints the evaluator sees nothing of a training that is over before it has looked."""

        def after_run(self, session: Any, result: Any, loss: Any) -> None:
            if result.step == 5 and not checkpoints:
                assert evaluated.wait(30)

    with (
        cluster(ps=1, workers=1, owned=False) as (worker,),
        dps.Server(None, "evaluator", 0, chief=worker.target) as evaluator,
    ):

        def task(server: dps.Server) -> None:
            hooks: list[dps.Hook] = [dps.CheckpointSaver(steps=5)] if checkpoints else []
            if server is worker:
                hooks.append(WaitsForTheEvaluator())
            with dps.strategy.ParameterServer(server, hooks=hooks, **folder) as strategy:
                train = {"x": x, "y": y, "epochs": 5, "verbose": 0}
                model = model_of(strategy)
                if server is evaluator:
                    model.evaluate = told_of(model.evaluate, evaluated)
                logs[server.job] = dps.nn.train_and_evaluate(model, train, {"x": x, "y": y}, pause=0.01, timeout=30)
            if server is worker:
                worker.stop()

        threads = [threading.Thread(target=task, args=(server,)) for server in (evaluator, worker)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert set(logs["evaluator"]) == {"loss", "accuracy"}
    if checkpoints:
        assert logs["evaluator"] == pytest.approx(logs["worker"])  # the last checkpoint always comes
        rows = [json.loads(line) for line in (tmp_path / "run/evaluator/summaries.jsonl").read_text().splitlines()]
        assert rows[-1]["step"] == 10 and np.isclose(rows[-1]["loss"], logs["worker"]["loss"])
