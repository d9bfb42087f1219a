"""Faster R-CNN of torchvision: a training step, and boxes that `nms` keeps of a picture."""

from __future__ import annotations

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

from ..run import Run


def main(run: Run) -> None:
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=96, max_size=96, rpn_pre_nms_top_n_train=64,
        rpn_post_nms_top_n_train=32, rpn_pre_nms_top_n_test=64, rpn_post_nms_top_n_test=32, trainable_backbone_layers=6,
        # all candidates are taken, so that which ones does not depend on random numbers
        rpn_batch_size_per_image=100_000, box_batch_size_per_image=100_000, rpn_score_thresh=0.0, box_score_thresh=0.0,
        box_detections_per_img=10,
    ).to(run.device)  # fmt: skip
    pictures = [torch.rand(3, 96, 96).to(run.device) for _ in range(2)]
    targets = [
        {"boxes": torch.tensor([[8.0, 8.0, 40.0, 48.0], [30.0, 20.0, 80.0, 70.0]]), "labels": torch.tensor([1, 2])},
        {"boxes": torch.tensor([[16.0, 30.0, 60.0, 90.0]]), "labels": torch.tensor([1])},
    ]
    targets = [{name: t.to(run.device) for name, t in target.items()} for target in targets]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    compiled = run.compile(model)
    run.start()
    for _ in range(3):
        losses = compiled(pictures, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.record(*losses.values())
    model.eval()
    with torch.no_grad():
        found = model(pictures)
    run.record(*(value for f in found for value in (len(f["boxes"]), f["scores"].sum(), f["boxes"].mean())))
