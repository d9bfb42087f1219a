"""A model whose modules read and write the entries of a TensorDict."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential

from ..run import Run


def main(run: Run) -> None:
    model = TensorDictSequential(
        TensorDictModule(torch.nn.Linear(6, 16), in_keys=["observation"], out_keys=["hidden"]),
        TensorDictModule(torch.nn.Tanh(), in_keys=["hidden"], out_keys=["hidden"]),
        TensorDictModule(torch.nn.Linear(16, 2), in_keys=["hidden"], out_keys=[("result", "value")]),
    ).to(run.device)
    data = TensorDict({"observation": torch.randn(32, 6), "target": torch.randn(32, 2)}, batch_size=[32])
    data = data.to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    compiled = run.compile(lambda data: (model(data)["result", "value"] - data["target"]).square().mean())
    run.start()
    for step in range(6):
        batch = data.reshape(2, 16)[step % 2].clone()
        loss = compiled(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.record(loss)
    parameters = TensorDict.from_module(model).detach()
    run.record(parameters.apply(lambda t: t.square().mean(), batch_size=[]).sum(reduce=True))
    stacked = torch.stack([data, data * 2]).apply(lambda t: t + 1)
    run.record(stacked["observation"].sum(), stacked[:, ::4].cpu()["target"].sum())
