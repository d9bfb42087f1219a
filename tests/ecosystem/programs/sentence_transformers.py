"""A small sentence encoder: training by pairs, embeddings, similarities and a search."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

from ..run import Run

WORDS = [
    "a", "the", "man", "woman", "cat", "dog", "eats", "plays", "runs", "food", "piece", "of", "music", "guitar",
    "fast", "slowly",
]  # fmt: skip
PAIRS = [
    ("a man eats food", "the man eats a piece of food"), ("a dog runs fast", "the dog runs"),
    ("a woman plays music", "the woman plays guitar"), ("the cat eats slowly", "a cat eats food slowly"),
]  # fmt: skip


def _model(device: str) -> SentenceTransformer:
    """A transformer with random weights and a tokenizer of few words."""
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "vocab.txt"
        words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
        config = BertConfig(
            vocab_size=len(WORDS) + 5, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        BertModel(config).save_pretrained(folder)
        BertTokenizerFast(str(words)).save_pretrained(folder)
        transformer = Transformer(folder)
    return SentenceTransformer(modules=[transformer, Pooling(32)], device=device)


def main(run: Run) -> None:
    model = _model(run.device)
    loss_of = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run.compile_in_place(model)
    sides = [model.tokenize(list(side)) for side in zip(*PAIRS, strict=True)]
    features = [{name: t.to(run.device) for name, t in side.items() if torch.is_tensor(t)} for side in sides]
    model.train()
    run.start()
    for _ in range(6):
        loss = loss_of([dict(side) for side in features], None)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.record(loss)
    embeddings = model.encode([first for first, _ in PAIRS], convert_to_tensor=True)
    assert embeddings.device.type == run.device
    run.record(*util.cos_sim(embeddings, embeddings).flatten(), *model.encode("a dog eats")[:4])
    hits = util.semantic_search(embeddings[:1], embeddings, top_k=2)
    run.record(*(hit["score"] for hit in hits[0]))
