"""Metrics of torchmetrics in a loop over batches, and one that is a loss."""

from __future__ import annotations

import torch
import torchmetrics
from torchmetrics.functional.image import structural_similarity_index_measure
from torchmetrics.image import PeakSignalNoiseRatio

from ..run import Run


def main(run: Run) -> None:
    of_classes = {"task": "multiclass", "num_classes": 4}
    metrics = torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.Accuracy(**of_classes),
            "auroc": torchmetrics.AUROC(**of_classes, thresholds=None),
            "f1": torchmetrics.F1Score(**of_classes, average="macro"),
            "matrix": torchmetrics.ConfusionMatrix(**of_classes),
        }
    ).to(run.device)
    regression = torchmetrics.MetricCollection(
        [torchmetrics.MeanSquaredError(), torchmetrics.PearsonCorrCoef(), torchmetrics.SpearmanCorrCoef()]
    ).to(run.device)
    scores, labels = torch.randn(4, 32, 4).softmax(-1).to(run.device), torch.randint(0, 4, (4, 32)).to(run.device)
    picture = torch.rand(2, 3, 16, 16).to(run.device)
    noise = (0.1 * torch.rand(2, 3, 16, 16)).to(run.device).requires_grad_()
    loss_of = run.compile(lambda noise: structural_similarity_index_measure(picture + noise, picture, data_range=1.0))
    run.start()
    for score, label in zip(scores, labels, strict=True):
        found = metrics(score, label)
        regression.update(score[:, 0], score[:, 1])
        loss = loss_of(noise)
        (gradient,) = torch.autograd.grad(loss, noise)
        run.record(found["accuracy"], found["auroc"], loss, gradient.square().sum())
    found = metrics.compute()
    run.record(found["f1"], *found["matrix"].flatten(), *regression.compute().values())
    ratio = PeakSignalNoiseRatio(data_range=1.0).to(run.device)
    run.record(ratio(picture + noise, picture))
