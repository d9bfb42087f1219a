"""A UNet of diffusers: training to remove noise, and the loop of DDPM that samples pictures."""

from __future__ import annotations

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel

from ..run import Run


def main(run: Run) -> None:
    model = UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).to(run.device)  # fmt: skip
    scheduler = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rates = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=6)
    ema = EMAModel(model.parameters(), decay=0.9)
    compiled = run.compile(model)
    pictures = torch.rand(4, 3, 16, 16).to(run.device)
    generator = torch.Generator().manual_seed(0)
    run.start()
    for _ in range(6):
        noise = torch.randn(pictures.shape, generator=generator).to(run.device)
        times = torch.randint(0, 100, (4,), generator=generator).to(run.device)
        noised = scheduler.add_noise(pictures, noise, times)
        loss = torch.nn.functional.mse_loss(compiled(noised, times, return_dict=False)[0], noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        ema.step(model.parameters())
        run.record(loss)
    ema.copy_to(model.parameters())
    scheduler.set_timesteps(5)
    sample = torch.randn((2, 3, 16, 16), generator=generator).to(run.device)
    with torch.no_grad():
        for time in scheduler.timesteps:
            sample = scheduler.step(compiled(sample, time).sample, time, sample, generator=generator).prev_sample
    run.record(sample.mean(), sample.std())
