"""The Trainer of transformers with a small Llama: compiled, or on the device."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from ..run import Run


class Losses(TrainerCallback):
    """Hands the logged losses to the run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        if "loss" in (logs or {}):
            self.run.record(logs["loss"], logs["grad_norm"])


def main(run: Run) -> None:
    os.environ |= {"ACCELERATE_TORCH_DEVICE": "jax"} if run.device == "jax" else {}
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, 64, (64, 16))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    run.compile_in_place(model)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=8, learning_rate=1e-2, max_steps=8, logging_steps=1, report_to=[],
            save_strategy="no", disable_tqdm=True, use_cpu=run.device == "cpu",
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[Losses(run)])
        run.start()
        trainer.train()
        assert next(model.parameters()).device.type == run.device
        run.record(trainer.evaluate()["eval_loss"])
