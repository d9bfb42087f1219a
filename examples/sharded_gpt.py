"""Trains the GPT of char_gpt.py over a mesh of devices, and shows that the losses are those of one device.

    python examples/sharded_gpt.py --mesh data=2,model=4        # eight devices; without any, the CPU serves as eight
    python examples/sharded_gpt.py --mesh data=8 --fsdp --plot losses.png

The model is not changed: a plan says which matrices are partitioned over "model", the batch is partitioned over "data".
"""

import argparse
import math
import os

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("--mesh", default="data=2,model=4", help="the axes of the mesh and their sizes")
PARSER.add_argument("--fsdp", action="store_true", help="partition parameters over the axis data, too")
PARSER.add_argument("--steps", type=int, default=60)
PARSER.add_argument("--rate", type=float, default=3e-3, help="the learning rate")
PARSER.add_argument("--seed", type=int, default=0)
PARSER.add_argument("--plot", help="a file for a picture of both curves")
OPTIONS = PARSER.parse_args()
AXES = {name: int(size) for name, size in (axis.split("=") for axis in OPTIONS.mesh.split(","))}
# before JAX starts: as many devices of the CPU as the mesh has, if there is nothing else
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={math.prod(AXES.values())}")

import torch  # noqa: E402  # the flag comes first
from char_gpt import GPT, Text, loss_of, random_batch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from tqdm import tqdm  # noqa: E402

import jaten_ops  # noqa: E402
from jaten_ops import distributed  # noqa: E402

PLAN = {
    "characters": "embedding_rowwise",
    "blocks.*.qkv": "colwise",
    "blocks.*.out": "rowwise",
    "blocks.*.mlp.0": "colwise",
    "blocks.*.mlp.2": "rowwise",
    "head": "colwise_rep",
}


def train(model: nn.Module, text: Text, title: str, mesh: object = None) -> list[float]:
    """The losses of a training by AdamW, on one device or over a mesh."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=OPTIONS.rate, weight_decay=0.01)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = loss_of(model, (inputs, targets))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = jaten_ops.compile_step(step)
    places = torch.Generator().manual_seed(OPTIONS.seed)
    losses = []
    for _ in tqdm(range(OPTIONS.steps), desc=title, unit=" steps"):
        batch = random_batch(text.train, places, "cpu")
        if mesh is not None:
            place = distributed.distribute_batch if "data" in AXES else distributed.distribute_tensor
            batch = [place(tensor, mesh) for tensor in batch]
        losses.append(step(*batch).item())
    return losses


def main() -> None:
    text = Text()
    mesh = distributed.make_mesh(**AXES)
    models = []
    for _ in range(2):
        torch.manual_seed(OPTIONS.seed)
        models.append(GPT(len(text.vocabulary), dropout=0.0))
    one = train(models[0].to("jax"), text, "one device")
    model = models[1]
    if "model" in AXES:
        distributed.parallelize_module(model, mesh, PLAN)
    if OPTIONS.fsdp:
        distributed.fully_shard(model, mesh)
    elif "model" not in AXES:
        distributed.parallelize_module(model, mesh, {}, axis="data")
    many = train(model, text, f"mesh {OPTIONS.mesh}", mesh)
    for at in range(0, OPTIONS.steps, max(1, OPTIONS.steps // 6)):
        print(f"step {at:4}: one device {one[at]:.4f}, mesh {many[at]:.4f}")
    print(f"largest difference of the losses: {max(abs(a - b) for a, b in zip(one, many, strict=True)):.1e}")
    weight = model.blocks[0].qkv.weight
    print(f"of a matrix of {weight.numel():,} numbers, {weight.to_local().numel():,} are on the first device")
    if OPTIONS.plot:
        draw(one, many)


def draw(one: list[float], many: list[float]) -> None:
    """Draws both curves."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  # only for this

    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot(one, label="one device", linewidth=4, alpha=0.4)
    axes.plot(many, label=f"mesh {OPTIONS.mesh}", linewidth=1.2)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig(OPTIONS.plot, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
