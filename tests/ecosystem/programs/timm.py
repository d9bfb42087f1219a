"""timm's training loop: its optimizer, scheduler, mixup, loss and moving average of the weights."""

from __future__ import annotations

import timm
import timm.data
import timm.loss
import timm.optim
import timm.scheduler
import timm.utils
import torch

from ..run import Run


def main(run: Run) -> None:
    model = timm.create_model("resnet10t", num_classes=10).to(run.device)
    ema = timm.utils.ModelEmaV3(model, decay=0.9)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.02, momentum=0.9, weight_decay=1e-4)
    scheduler, _ = timm.scheduler.create_scheduler_v2(optimizer, sched="cosine", num_epochs=8, warmup_epochs=2)
    mixup = timm.data.Mixup(mixup_alpha=0.0, cutmix_alpha=0.0, prob=0.0, label_smoothing=0.1, num_classes=10)
    criterion = timm.loss.SoftTargetCrossEntropy()
    compiled = run.compile(model)
    images, labels = torch.randn(8, 3, 64, 64).to(run.device), torch.arange(8).to(run.device)
    compiled.train()
    run.start()
    for step in range(6):
        x, target = images, timm.data.mixup.mixup_target(labels, 10, smoothing=mixup.label_smoothing)
        loss = criterion(compiled(x), target)
        optimizer.zero_grad()
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), value=1.0)
        optimizer.step()
        ema.update(model, step=step)
        scheduler.step(step + 1)
        run.record(loss)
    ema.module.eval()
    with torch.inference_mode():
        output = ema.module(images)
    run.record(*timm.utils.accuracy(output, labels, topk=(1, 5)), output.square().mean())
