"""Proximal policy optimization by TorchRL: advantages of a rollout, and steps of its clipped loss."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from ..run import Run


def _rollout() -> TensorDict:
    observations, done = torch.randn(4, 9, 3), torch.rand(4, 8, 1) < 0.1
    action = torch.eye(2, dtype=torch.int64)[torch.randint(2, (4, 8))]
    after = {"observation": observations[:, 1:], "reward": torch.randn(4, 8, 1), "done": done, "terminated": done}
    return TensorDict(
        {"observation": observations[:, :-1], "action": action, "action_log_prob": torch.randn(4, 8) * 0.1 - 0.7,
         "next": after},
        batch_size=[4, 8],
    )  # fmt: skip


def main(run: Run) -> None:
    layers = TensorDictModule(MLP(3, 2, num_cells=[16], activation_class=nn.Tanh), ["observation"], ["logits"])
    actor = ProbabilisticActor(layers, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True)
    critic = ValueOperator(MLP(3, 1, num_cells=[16], activation_class=nn.Tanh), in_keys=["observation"])
    data = _rollout().to(run.device)
    actor, critic = actor.to(run.device), critic.to(run.device)
    loss_of = ClipPPOLoss(actor, critic, entropy_bonus=True)
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=3e-3)

    def loss_of_batch(batch: TensorDict) -> torch.Tensor:
        found = loss_of(batch)
        return found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]

    compiled = run.compile(loss_of_batch)
    run.start()
    with torch.no_grad():
        advantages(data)
    run.record(data["advantage"].square().sum(), data["value_target"].sum())
    for _ in range(5):
        loss = compiled(data.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.record(loss)
