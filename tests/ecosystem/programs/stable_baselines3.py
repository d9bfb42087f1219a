"""DQN of stable-baselines3 on CartPole: what it learns, and what it then does."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from ..run import Run


class Losses(BaseCallback):
    """Hands the losses to the run."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.of = run

    def _on_step(self) -> bool:
        loss = self.model.logger.name_to_value.get("train/loss")
        if loss:
            self.of.record(loss)
        return True


def main(run: Run) -> None:
    agent: Any = DQN(
        "MlpPolicy", "CartPole-v1", learning_starts=20, train_freq=4, batch_size=16, learning_rate=1e-3, seed=0,
        target_update_interval=20, device=run.device, policy_kwargs={"net_arch": [16]},
    )  # fmt: skip
    run.compile_in_place(agent.q_net)
    run.start()
    agent.learn(80, callback=Losses(run), log_interval=10_000)
    assert agent.q_net.device.type == run.device
    observation = torch.linspace(-0.1, 0.1, 4).numpy()
    run.record(*agent.q_net(torch.from_numpy(observation)[None].to(run.device)).flatten())
    run.record(agent.predict(observation, deterministic=True)[0])
