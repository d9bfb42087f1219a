"""A small Llama of LitGPT: training as in its pretraining loop, and tokens by a cache of keys and values."""

from __future__ import annotations

import torch
from litgpt.config import Config
from litgpt.generate.base import generate
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy

from ..run import Run


def main(run: Run) -> None:
    config = Config.from_name(
        "tiny-llama-1.1b", n_layer=2, n_embd=32, n_head=4, n_query_groups=2, intermediate_size=64, block_size=32,
        padded_vocab_size=64,
    )  # fmt: skip
    model = GPT(config).to(run.device)
    model.max_seq_length = 24
    tokens = torch.randint(0, 64, (8, 25)).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    compiled = run.compile(model)
    run.start()
    for _ in range(6):
        logits = compiled(tokens[:, :-1])
        loss = chunked_cross_entropy(logits, tokens[:, 1:].contiguous(), chunk_size=0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.record(loss.detach())
    model.eval()
    with torch.device(run.device):
        model.set_kv_cache(batch_size=1)
    found = generate(model, tokens[0, :6], max_returned_tokens=20, temperature=0.0)
    run.record(*found.tolist())
