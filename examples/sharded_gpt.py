"""Trains the GPT of char_gpt.py over a mesh of devices, and shows that the losses are those of one device.

    python examples/sharded_gpt.py --mesh data=2,model=4        # eight devices; without any, the CPU serves as eight
    python examples/sharded_gpt.py --mesh data=8 --fsdp --plot losses.png

The model is not changed: a plan says which matrices are partitioned over "model", the batch is partitioned over "data".
"""

import argparse
import os

# before JAX starts: eight devices of the CPU, if there is nothing else
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS") or "--xla_force_host_platform_device_count=8"

import matplotlib.pyplot as plt
import torch
from char_gpt import GPT, Text, loss_of, random_batch
from jax.sharding import Mesh
from torch import Tensor, nn
from tqdm import tqdm

import jaten_ops
from jaten_ops import distributed

PLAN = {
    "characters": "embedding_rowwise",
    "blocks.*.qkv": "colwise",
    "blocks.*.out": "rowwise",
    "blocks.*.mlp.0": "colwise",
    "blocks.*.mlp.2": "rowwise",
    "head": "colwise_rep",
}


def train(
    model: nn.Module, text: Text, options: argparse.Namespace, title: str, mesh: Mesh | None = None
) -> list[float]:
    """The losses of a training by AdamW, on one device or over a mesh."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = loss_of(model, (inputs, targets))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = jaten_ops.compile_step(step)
    places = torch.Generator().manual_seed(options.seed)
    losses = []
    for _ in tqdm(range(options.steps), desc=title, unit=" steps"):
        batch = random_batch(text.train, places, "cpu")
        if mesh is not None:
            place = distributed.distribute_batch if "data" in mesh.shape else distributed.distribute_tensor
            batch = [place(tensor, mesh) for tensor in batch]
        losses.append(step(*batch).item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default="data=2,model=4", help="the axes of the mesh and their sizes")
    parser.add_argument("--fsdp", action="store_true", help="partition parameters over the axis data, too")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=3e-3, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", help="a file for a picture of both curves")
    options = parser.parse_args()
    axes = {name: int(size) for name, size in (axis.split("=") for axis in options.mesh.split(","))}

    text = Text()
    mesh = distributed.make_mesh(**axes)
    models = []
    for _ in range(2):
        torch.manual_seed(options.seed)
        models.append(GPT(len(text.vocabulary), dropout=0.0))
    one = train(models[0].to("jax"), text, options, "one device")
    model = models[1]
    if "model" in axes:
        distributed.parallelize_module(model, mesh, PLAN)
    if options.fsdp:
        distributed.fully_shard(model, mesh)
    elif "model" not in axes:
        distributed.parallelize_module(model, mesh, {}, axis="data")
    many = train(model, text, options, f"mesh {options.mesh}", mesh)
    for at in range(0, options.steps, max(1, options.steps // 6)):
        print(f"step {at:4}: one device {one[at]:.4f}, mesh {many[at]:.4f}")
    print(f"largest difference of the losses: {max(abs(a - b) for a, b in zip(one, many, strict=True)):.1e}")
    weight = model.blocks[0].qkv.weight
    print(f"of a matrix of {weight.numel():,} numbers, {weight.to_local().numel():,} are on the first device")
    if options.plot:
        draw(one, many, options)


def draw(one: list[float], many: list[float], options: argparse.Namespace) -> None:
    """Draws both curves."""
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot(one, label="one device", linewidth=4, alpha=0.4)
    axes.plot(many, label=f"mesh {options.mesh}", linewidth=1.2)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig(options.plot, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
