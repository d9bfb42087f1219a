"""A U-Net of Segmentation Models PyTorch with ResNet-18 as its encoder: training with a Dice loss, and IoU."""

from __future__ import annotations

import segmentation_models_pytorch as smp
import torch

from ..run import Run


def main(run: Run) -> None:
    model = smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=1).to(run.device)
    images = torch.randn(2, 3, 64, 64).to(run.device)
    masks = (torch.rand(2, 1, 64, 64) > 0.5).long().to(run.device)
    dice = smp.losses.DiceLoss("binary", from_logits=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    compiled = run.compile(model)
    run.start()
    for _ in range(4):
        optimizer.zero_grad()
        logits = compiled(images)
        loss = dice(logits, masks)
        loss.backward()
        optimizer.step()
        counts = smp.metrics.get_stats(logits.detach().sigmoid() > 0.5, masks, mode="binary")
        run.record(loss.detach(), smp.metrics.iou_score(*counts, reduction="micro"))
