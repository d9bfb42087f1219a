"""LoRA of peft on a small Llama: training, and the weights merged."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from ..run import Run


def main(run: Run) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    settings = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM(config), settings).to(run.device)
    tokens = torch.randint(0, 64, (8, 16)).to(run.device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    compiled = run.compile(model)
    run.start()
    for _ in range(6):
        loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.record(loss)
    merged = model.merge_and_unload().eval()
    with torch.no_grad():
        run.record(merged(input_ids=tokens, labels=tokens).loss)
