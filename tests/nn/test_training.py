"""fit, evaluate and predict: what they are given, callbacks, hooks, weights in files, and bad use, one line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps import nn
from dps.errors import CheckpointError, ConfigError, DataError
from tests.accounts import modes
from tests.nn.text import data, two_layers

X, Y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 3


def compiled(**settings: Any) -> nn.Sequential:
    model = two_layers("float32")
    model.compile(
        **{"optimizer": "sgd", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **settings}
    )
    return model


def fitted(x: Any, y: Any = None, **settings: Any) -> list[float]:
    found: list[float] = compiled().fit(x, y, verbose=0, **settings).history["loss"]
    return found


# -- what they are given ----------------------------------------------------------------------------------------


def test_arrays_datasets_lists_and_iterators_train_alike() -> None:
    batches = [(X[start : start + 5], Y[start : start + 5]) for start in range(0, 20, 5)]
    wanted = fitted(X, Y, batch_size=5, shuffle=False, epochs=2)
    assert fitted(dps.data.from_arrays(X, Y).batch(5), epochs=2) == wanted
    assert fitted(batches, epochs=2) == wanted
    assert fitted(iter(batches * 2), epochs=2, steps_per_epoch=4) == wanted
    assert fitted(dps.data.from_arrays(X, Y).batch(5).repeat(), epochs=2, steps_per_epoch=4) == wanted
    assert fitted(iter(batches)) == wanted[:1]
    assert fitted(X, Y, batch_size=5, epochs=2) != wanted  # shuffled, the same each time
    assert fitted(X, Y, batch_size=5, epochs=2) == fitted(X, Y, batch_size=5, epochs=2)
    assert fitted(X, Y, batch_size=5, epochs=2) != fitted(X, Y, batch_size=5, epochs=2, seed=9)


def test_a_shuffled_dataset_has_the_order_of_its_own_passes() -> None:
    def shuffled() -> Any:
        return dps.data.from_arrays(X, Y).shuffle(20, seed=3).batch(5)

    passes = shuffled()
    batches = [batch for _ in range(2) for batch in passes]
    assert fitted(shuffled(), epochs=2) == fitted(iter(batches), epochs=2, steps_per_epoch=4)


def test_examples_may_be_numbers() -> None:
    model = nn.Sequential([nn.Embedding(3, 2), nn.Dense(3)])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(Y, Y, verbose=0)
    assert model.predict(Y).shape == (20, 3)


def test_predict_takes_arrays_and_batches() -> None:
    model = compiled()
    wanted = model.predict(X)
    assert wanted.shape == (20, 3) and wanted.dtype == np.float32
    for given in (iter([X[:11], X[11:]]), dps.data.from_arrays(X).batch(7), dps.data.from_arrays(X, Y).batch(7)):
        np.testing.assert_allclose(model.predict(given), wanted, atol=1e-6)
    np.testing.assert_allclose(model.predict(X, batch_size=3), wanted, atol=1e-6)
    with dps.strategy.Mirrored(["/cpu:0", "/cpu:1"]).scope():
        other = two_layers("float32")
    np.testing.assert_allclose(other.predict(X, batch_size=7), wanted, atol=1e-6)


def test_evaluate_returns_loss_and_metrics_as_keras_does(capsys: pytest.CaptureFixture[str]) -> None:
    model = compiled(metrics=["accuracy", "sparse_categorical_crossentropy"])
    loss, accuracy, again = model.evaluate(X, Y)
    assert "1/1 [==============================] - 0s" in capsys.readouterr().out
    assert loss == pytest.approx(again) and 0 <= accuracy <= 1
    found = model.evaluate(X, Y, verbose=0, return_dict=True, batch_size=3)
    assert found == pytest.approx({"loss": loss, "accuracy": accuracy, "sparse_categorical_crossentropy": again})
    assert accuracy == np.mean(model.predict(X).argmax(axis=1) == Y)
    assert isinstance(compiled(metrics=[]).evaluate(X, Y, verbose=0), float)


def test_losses_and_metrics_of_ones_own() -> None:
    def absolute(y: Any, out: Any) -> Any:
        return np.abs(out - y).sum(axis=1), np.sign(out - y)

    def above(y: Any, out: Any) -> Any:
        return out[:, 0] > y[:, 0]

    model = nn.Sequential([nn.Dense(1)], dtype="float64")
    model.compile("sgd", absolute, [above])
    history = model.fit(X, X[:, :1], epochs=3, verbose=0).history
    assert history["loss"][2] < history["loss"][0] and set(history) == {"loss", "above"}


def test_the_table_of_an_epoch_and_validation(capsys: pytest.CaptureFixture[str]) -> None:
    history = compiled().fit(X, Y, epochs=2, batch_size=5, validation_data=(X[:4], Y[:4]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Epoch 1/2" and lines[2] == "Epoch 2/2" and len(lines) == 4
    assert lines[1].startswith("4/4 [==============================] - 0s ")
    numbers = {name: values[0] for name, values in history.history.items()}
    assert lines[1].endswith("".join(f" - {name}: {value:.4f}" for name, value in numbers.items()))
    assert list(numbers) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    compiled().fit(X, Y, verbose=2, initial_epoch=1, epochs=2)
    assert capsys.readouterr().out.startswith("Epoch 2/2\n1/1 - 0s ")


def test_a_validation_split_is_the_last_examples_which_are_not_trained_on() -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 4, "verbose": 0, "seed": 5}
    wanted = compiled().fit(X[:15], Y[:15], validation_data=(X[15:], Y[15:]), **settings)
    found = compiled().fit(X, Y, validation_split=0.25, **settings)
    assert found.history == wanted.history and "val_accuracy" in found.history


# -- callbacks and hooks ----------------------------------------------------------------------------------------


class Calls(nn.Callback):
    """Notes all calls."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *of: self.seen.append((name[3:], *of[:-1]))
        return super().__getattribute__(name)


def test_callbacks_are_called_in_their_order() -> None:
    calls = Calls()
    compiled().fit(X, Y, batch_size=10, epochs=2, callbacks=[calls], verbose=0)
    batches = [("train_batch_begin", 0), ("train_batch_end", 0), ("train_batch_begin", 1), ("train_batch_end", 1)]
    epochs = [[("epoch_begin", n), *batches, ("epoch_end", n)] for n in range(2)]
    assert calls.seen == [("train_begin",), *epochs[0], *epochs[1], ("train_end",)]


def test_early_stopping_and_the_best_weights(tmp_path: Path) -> None:
    model = compiled(optimizer=dps.optim.SGD(1e-12))
    stop = nn.EarlyStopping("loss", patience=2, min_delta=1e-3, restore_best_weights=True)
    saver = nn.ModelCheckpoint(str(tmp_path / "best-{epoch}-{loss:.1f}.safetensors"), "loss", save_best_only=True)
    history = model.fit(X, Y, epochs=9, callbacks=[stop, saver], verbose=0)
    assert history.epoch == [0, 1, 2]
    assert [path.name[:7] for path in sorted(tmp_path.iterdir())][:1] == ["best-1-"]
    with pytest.raises(ConfigError, match="there is no 'val_loss' among .*give fit validation_data"):
        model.fit(X, Y, callbacks=[nn.EarlyStopping()], verbose=0)
    with pytest.raises(ConfigError, match="'best-{epoch}-{speed}' names 'speed', which is not among"):
        model.fit(X, Y, callbacks=[nn.ModelCheckpoint("best-{epoch}-{speed}")], verbose=0)
    with pytest.raises(ConfigError, match="LambdaCallback: got 'on_epoch', wanted on_epoch_begin"):
        nn.LambdaCallback(on_epoch=print)


class Steps(dps.Hook):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def begin(self) -> None:
        self.seen.append("begin")

    def after_create_session(self, session: Any) -> None:
        self.seen.append(session.global_step)

    def after_run(self, session: Any, push: dps.Push, loss: Any) -> None:
        assert session.global_step == push.step and loss > 0
        self.seen.append(push.step)

    def end(self, session: Any) -> None:
        self.seen.append("end")


@pytest.mark.parametrize("on_ps", [False, True])
def test_hooks_work_too(on_ps: bool) -> None:
    with dps.Server.create_local_server() as server:
        made = dps.strategy.ParameterServer(server) if on_ps else dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        steps, ended = Steps(), dps.StopAtStep(last_step=5)
        with made as strategy:
            with strategy.scope():
                model = two_layers("float32")
            model.compile("sgd", "sparse_categorical_crossentropy")
            history = model.fit(X, Y, batch_size=5, epochs=9, callbacks=[steps, dps.NanGuard(), ended], verbose=0)
    assert steps.seen == ["begin", 0, 1, 2, 3, 4, 5, "end"] and history.epoch == [0, 1]


def test_hooks_of_the_strategys_session_are_told_the_loss() -> None:
    steps = Steps()
    with dps.Server.create_local_server() as server, dps.strategy.ParameterServer(server, hooks=[steps]) as strategy:
        with strategy.scope():
            model = two_layers("float32")
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(X, Y, verbose=0)
    assert steps.seen == ["begin", 0, 1, "end"]


def test_summaries_have_the_numbers_of_the_last_epoch(tmp_path: Path) -> None:
    saver = dps.SummarySaver(str(tmp_path), steps=1)
    history = compiled().fit(X, Y, batch_size=10, epochs=2, callbacks=[saver], verbose=0).history
    rows = [json.loads(line) for line in (tmp_path / "summaries.jsonl").read_text().splitlines()]
    assert [row.get("epoch_accuracy") for row in rows] == [None, None, None, history["accuracy"][0], None]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]


def test_a_saver_without_a_ps_is_refused() -> None:
    with pytest.raises(ConfigError, match="no run checkpoints; use dps.nn.ModelCheckpoint, or ParameterServer"):
        compiled().fit(X, Y, callbacks=[dps.CheckpointSaver(steps=1)], verbose=0)


# -- weights ----------------------------------------------------------------------------------------------------


def test_weights_go_from_one_strategy_to_another(tmp_path: Path) -> None:
    x, y = data()
    file = tmp_path / "some" / "weights.safetensors"
    with dps.Server.create_local_server() as server, dps.strategy.ParameterServer(server) as strategy:
        with strategy.scope():
            model = two_layers()
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, verbose=0)
        model.save_weights(file)
        wanted = model.predict(x)
    other = two_layers()
    other.build(3)
    other.load_weights(file)
    np.testing.assert_array_equal(other.predict(x), wanted)
    wider = two_layers()
    wider.build((4,))
    with pytest.raises(CheckpointError, match=r"has \(3, 5\) for dense/w, the model has \(4, 5\)"):
        wider.load_weights(file)
    with pytest.raises(CheckpointError, match=r"load_weights: .*nowhere cannot be read"):
        other.load_weights(tmp_path / "nowhere")


def test_a_run_with_a_checkpoint_dir_goes_on_where_it_was(tmp_path: Path) -> None:
    def train(epochs: int) -> Any:
        settings = {"checkpoint_dir": str(tmp_path / "run")}
        with dps.Server.create_local_server() as server, dps.strategy.ParameterServer(server, **settings) as strategy:
            with strategy.scope():
                model = two_layers()
            model.compile(dps.optim.Adam(0.01), "sparse_categorical_crossentropy")
            model.fit(X, Y, epochs=epochs, initial_epoch=epochs - 2, verbose=0)
            return model.get_weights()

    train(2)
    alone = two_layers()
    alone.compile(dps.optim.Adam(0.01), "sparse_categorical_crossentropy")
    alone.fit(X, Y, epochs=4, verbose=0)
    for found, wanted in zip(train(4), alone.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-12)


# -- bad use ----------------------------------------------------------------------------------------------------


def generator(rows: list[int], width: int = 3) -> Any:
    for count in rows:
        yield np.ones((count, width)), np.zeros(count, np.int64)


def changing() -> Any:
    yield from generator([4, 4])
    yield from generator([4], width=2)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda m: two_layers().fit(X, Y), ConfigError, r"fit: call compile\(optimizer=..., loss=...\) before"),
        (lambda m: two_layers().evaluate(X, Y), ConfigError, "evaluate: call compile"),
        (lambda m: m.compile("sgd", "hinge"), ConfigError, "got loss='hinge', wanted one of 'mse'"),
        (lambda m: m.compile("sgdd"), ConfigError, "got optimizer='sgdd', wanted one of dps.optim, or 'sgd'"),
        (lambda m: m.compile(metrics=["f1"]), ConfigError, r"got metrics=\['f1'\], wanted one of 'accuracy'"),
        (lambda m: m.compile(metrics=["accuracy"]), ConfigError, "with a loss that is of no classes"),
        (lambda m: m.compile(metrics=["mse", "mse"]), ConfigError, "two metrics 'mse'"),
        (lambda m: m.compile(metrics="accuracy"), ConfigError, r"wanted a list of at most 12, as \['accuracy'\]"),
        (lambda m: m.fit(X, Y[:3]), DataError, "fit: x has arrays of 20 and 3 examples"),
        (lambda m: m.fit(X, validation_data=(X, Y)), DataError, "fit: got x without y; wanted the targets, too"),
        (lambda m: m.fit(3), ConfigError, "fit: got int, wanted arrays, or an iterable of batches"),
        (lambda m: m.fit([(X, Y)], batch_size=5), ConfigError, "batch_size=5 with batches that are made already"),
        (lambda m: m.fit(X, Y, epochs=0), ConfigError, "fit: epochs: got 0, wanted a whole number from 1"),
        (lambda m: m.fit(X, Y, batch_size=0), ConfigError, "fit: batch_size: got 0"),
        (lambda m: m.fit(X, Y, callbacks=[print]), ConfigError, "fit: callbacks: got <built-in"),
        (lambda m: m.fit(X[:0], Y[:0]), DataError, "fit: got no examples"),
        (lambda m: m.fit([]), DataError, "fit: got no batches"),
        (lambda m: m.fit(dps.data.from_arrays(X, Y).batch(5).map(lambda x, y: None)), DataError,
         r"fit: the first batch: got .*, wanted \(x, y\)"),
        (lambda m: m.fit([(X, Y), None, (X, Y)]), DataError, r"fit: batch 2: got .*, wanted \(x, y\)"),
        (lambda m: m.predict([(X, Y), None]), DataError, "predict: batch 2"),
        (lambda m: m.fit(X, Y, validation_data=(X[:, :2], Y)), DataError,
         r"validation_data: x: examples have the shape \(2,\), the model takes \(3,\)"),
        (lambda m: m.fit(X, Y, validation_data=(X, Y + 1)), DataError,
         "^validation_data: batch 1: y has the class 3, and the model has 3 outputs: 0 to 2"),
        (lambda m: m.fit(X, Y, validation_data=dps.data.from_arrays(X, Y).map(lambda _: 1 / 0).batch(5)), DataError,
         "^validation_data: map: .* raised ZeroDivisionError"),
        (lambda m: m.fit(X, Y[:16].tolist() + [9] * 4, validation_split=0.2), DataError,
         "^validation_split: batch 1: y has the class 9"),
        (lambda m: m.evaluate(X, Y + 1), DataError, "^evaluate: batch 1: y has the class 3"),
        (lambda m: m.fit(X, Y, validation_split=20), ConfigError, "validation_split: got 20, wanted a share between 0"),
        (lambda m: m.fit(X, Y, validation_split=0.99), ConfigError, "0.99 of 20 examples leaves none to train"),
        (lambda m: m.fit(X[:1], Y[:1], validation_split=0.5), ConfigError, "0.5 of 1 examples leaves none to train on"),
        (lambda m: m.fit([(X, Y)], validation_split=0.2), ConfigError, "only arrays can be split; give a dataset's"),
        (lambda m: m.fit(X, Y, validation_split=0.2, validation_data=(X, Y)), ConfigError, "wanted one of them"),
        (lambda m: m.fit(changing()), DataError,
         r"fit: batch 3 of epoch 1: examples have the shape \(2,\), the model takes \(3,\)"),
        (lambda m: m.fit(generator([4, 4]), epochs=2), DataError,
         "fit: epoch 2 has 0 batches, wanted at least one: the data has ended"),
        (lambda m: m.fit(X, Y, batch_size=10, steps_per_epoch=3), DataError,
         "epoch 1 has 2 batches, wanted steps_per_epoch=3"),
        (lambda m: m.fit(X, Y + 1), DataError,
         "^fit: batch 1 of epoch 1: y has the class 3, and the model has 3 outputs: 0 to 2"),
        (lambda m: m.fit(X, X), DataError, r"y has float64 \(batch, 3\), wanted whole numbers \(batch,\)"),
        (lambda m: m.fit([(X, Y, Y)]), DataError, r"the first batch: got a tuple of 3, wanted \(x, y\)"),
        (lambda m: m.fit([X]), DataError, "the first batch: got an array"),
        (lambda m: m.fit("text"), DataError, "the first batch: got str 't'"),
        (lambda m: m.predict(X[:, :2]) if m.fit(X, Y, verbose=0) else 0, DataError,
         r"predict: x: examples have the shape \(2,\), the model takes \(3,\)"),
        (lambda m: m.compile() if m.fit(X, Y, verbose=0) else 0, ConfigError, "the model is trained already"),
        (lambda m: m.set_weights([X]) if m.fit(X, Y, verbose=0) else 0, ConfigError, r"set_weights: got \[\(20, 3\)\]"),
        (lambda m: m.add(nn.Dense(1)) if m.fit(X, Y, verbose=0) else 0, ConfigError, "is built already; add all"),
        (lambda m: m.build((2,)) if m.fit(X, Y, verbose=0) else 0, ConfigError, r"built already, for examples of"),
    ],
)  # fmt: skip
def test_bad_use_is_one_line(call: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words) as error:
        call(compiled())
    assert "\n" not in str(error.value)


def test_targets_and_losses_that_do_not_fit() -> None:
    model = nn.Sequential([nn.Dense(2)])
    model.compile("sgd", "mse", [lambda y, out: 3.0])
    with pytest.raises(DataError, match=r"mse: y has float64 \(batch, 3\), and the model's outputs are \(batch, 2\)"):
        model.fit(X, X, verbose=0)
    with pytest.raises(DataError, match=r"the metric <lambda> returned float64 \(\) for a batch of 20"):
        model.fit(X, X[:, :2], verbose=0)
    model = nn.Sequential([nn.Dense(2)])
    model.compile("sgd", lambda y, out: (out, out))
    with pytest.raises(ConfigError, match=r"losses of \(20, 2\) and gradients of \(20, 2\), wanted \(20,\)"):
        model.fit(X, X, verbose=0)
    model = nn.Sequential([nn.Flatten()])
    model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match="sequential: has no parameters to train"):
        model.fit(X, X, verbose=0)


def test_a_model_belongs_to_its_strategy() -> None:
    model = two_layers()
    with (
        dps.strategy.OneDevice("/cpu:0").scope(),
        pytest.raises(ConfigError, match="wanted that of the default strategy"),
    ):
        model.compile()


def test_saved_weights_are_for_one_account(open_folder: Path) -> None:
    model = two_layers()
    model.build((3,))
    for _ in range(2):
        model.save_weights(open_folder / "a" / "b" / "weights.safetensors")
        assert modes(open_folder / "a") == {}
