"""The trainer of transformers, with accelerate around the optimizer, trains a small model on a ps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dps
from tests.in_process import cluster

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')
pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate")

import dps.torch
from tests.adapters.models import torch

transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow  # loads transformers


class Counting(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
    """Sequences that count up, modulo 16."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = (torch.arange(8) + index) % 16
        return {"input_ids": ids, "labels": ids}


@pytest.mark.filterwarnings("ignore")  # those of two other libraries
def test_a_trainer_trains_with_the_optimizer_and_the_scheduler_of_the_ps(tmp_path: Path) -> None:
    settings = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, bos_token_id=0, eos_token_id=0))
    rate = dps.torch.schedule(lambda opt: torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.5, total_iters=24), 24, 0.01)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=24, per_device_train_batch_size=16, logging_steps=4, max_grad_norm=1.0,
        save_steps=12, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    with cluster(transport="inproc") as (worker,):
        opt = dps.torch.Optimizer(model.named_parameters(), worker, dps.optim.AdamW(rate))
        both = opt, opt.scheduler()
        trainer = transformers.Trainer(model, arguments, train_dataset=Counting(), optimizers=both)
        trainer.train()
        assert opt.session.global_step == 24
        logged = [row for row in trainer.state.log_history if "loss" in row]
        assert logged[-1]["loss"] < 0.8 * logged[0]["loss"]
        assert logged[-1]["learning_rate"] == pytest.approx(rate.at(24), rel=0.1)
        values = opt.session.pull()
        assert all((values[name] == parameter.detach().numpy()).all() for name, parameter in model.named_parameters())
        opt.close()
