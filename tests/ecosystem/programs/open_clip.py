"""A small CLIP of open_clip: the contrastive loss, and the zero-shot probabilities."""

from __future__ import annotations

import open_clip
import torch
from open_clip.loss import ClipLoss
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

from ..run import Run


def main(run: Run) -> None:
    model = CLIP(
        16,
        CLIPVisionCfg(layers=2, width=32, head_width=8, patch_size=8, image_size=16),
        CLIPTextCfg(context_length=16, vocab_size=49408, width=16, heads=2, layers=2),
    ).to(run.device)
    tokenizer = open_clip.SimpleTokenizer(context_length=16)
    texts = tokenizer(["a diagram", "a dog", "a cat", "two cats on a sofa"]).to(run.device)
    pictures = torch.randn(4, 3, 16, 16).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of, compiled = ClipLoss(), run.compile(model)
    run.start()
    for _ in range(6):
        loss = loss_of(*compiled(pictures, texts))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6)
        run.record(loss)
    model.eval()
    with torch.no_grad():
        images, words = model.encode_image(pictures, normalize=True), model.encode_text(texts, normalize=True)
        run.record(*(100.0 * images @ words.T).softmax(dim=-1).flatten())
