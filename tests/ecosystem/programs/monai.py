"""Segmentation by monai: a UNet, the Dice loss, a window that slides over a volume, and a metric."""

from __future__ import annotations

import torch
from monai.inferers import SlidingWindowInferer
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import AsDiscrete, Compose, NormalizeIntensity, Spacing

from ..run import Run


def main(run: Run) -> None:
    model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2)).to(run.device)
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    volume = torch.rand(2, 1, 16, 16, 16)
    labels = (volume > 0.6).long().to(run.device)
    prepare = Compose([NormalizeIntensity(), Spacing(pixdim=(1.0, 1.0, 1.0))])
    volume = torch.stack([prepare(v).as_tensor() for v in volume]).to(run.device)
    compiled = run.compile(model)
    run.start()
    for _ in range(5):
        loss = loss_of(compiled(volume), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.record(loss)
    model.eval()
    with torch.no_grad():
        output = SlidingWindowInferer((8, 8, 8), overlap=0.25, mode="gaussian")(volume, model)
    metric = DiceMetric(include_background=False)
    metric([AsDiscrete(argmax=True, to_onehot=2)(o) for o in output], [AsDiscrete(to_onehot=2)(y) for y in labels])
    run.record(output.mean(), metric.aggregate())
