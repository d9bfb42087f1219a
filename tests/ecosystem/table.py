"""The table of libraries: what pip installs, the program, and what it may do otherwise, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field

WAYS = ("plain", "jaten", "device", "aot_eager", "inductor")
"""Plain torch; compiled by jaten; on the device jax; and compiled by two backends of torch, to compare with."""

TORCHS_OWN = ("aot_eager", "inductor")
"""Contenders: only their breaks and their times matter."""

TOLERANCE = 1e-4
"""The largest distance of a curve from plain torch's, of the largest number in it, unless a row says otherwise."""


@dataclass(frozen=True)
class Row:
    """A library and its program, the module of the same name in `programs`.

    Attributes:
        requirement: what pip installs.
        about: what the program does.
        tolerance: of the curve.
        why: the reason for a tolerance over the default.
        ways: the ways in which it is run.
        reasons: why a way fails, for ways that do.
        limit: the seconds that a way may take.
        beside: why pip installs it without what it requires, but for `needs`; then the extra has only these.
        needs: what else of that pip installs.
    """

    requirement: str
    about: str
    tolerance: float = TOLERANCE
    why: str = ""
    ways: tuple[str, ...] = WAYS
    reasons: dict[str, str] = field(default_factory=dict)
    limit: float = 300.0
    beside: str = ""
    needs: tuple[str, ...] = ()


_EAGER = ("plain", "device")

ROWS: dict[str, Row] = {
    "lightning": Row("lightning", '`Trainer`: a compiled module, `accelerator="jax"`, checkpoints'),
    "transformers": Row("transformers", "`Trainer` with a small Llama"),
    "accelerate": Row("accelerate", "`prepare`, accumulated gradients, clipping, a saved state"),
    "peft": Row("peft", "LoRA on a small Llama, merged"),
    "diffusers": Row("diffusers", "a UNet: training, EMA, and a DDPM loop"),
    "timm": Row("timm", "the training loop with a moving average of weights"),
    "torchvision": Row("torchvision", "Faster R-CNN: training, and detection"),
    "torch_geometric": Row("torch_geometric", "GCN, GAT and SAGE, batches of graphs"),
    "torchao": Row("torchao", "`quantize_` to 8 bits"),
    "tensordict": Row("tensordict", "modules of TensorDicts, stacked and indexed"),
    "gpytorch": Row("gpytorch", "an exact Gaussian process, fitted"),
    "pyro": Row("pyro-ppl", "SVI with an AutoDelta guide"),
    "torchdiffeq": Row("torchdiffeq", "a neural ODE with its adjoint"),
    "captum": Row("captum", "five attributions of a classifier"),
    "opacus": Row("opacus", "private training, without noise"),
    "sentence_transformers": Row("sentence-transformers", "training by pairs, `encode`, a search"),
    "torchmetrics": Row("torchmetrics", "collections of metrics, SSIM as a loss"),
    "kornia": Row("kornia", "a warp that is learnt, filters, colours"),
    "monai": Row("monai", "a UNet in three dimensions, Dice, a sliding window"),
    "fastai": Row("fastai", "`Learner.fit_one_cycle`"),
    "stable_baselines3": Row("stable-baselines3", "DQN on CartPole"),
    "open_clip": Row("open_clip_torch", "a small CLIP"),
    "botorch": Row("botorch", "a Gaussian process, and the search of the largest expected gain"),
    "segmentation_models_pytorch": Row(
        "segmentation-models-pytorch",
        "a U-Net with ResNet-18 as encoder: a Dice loss, and IoU",
        tolerance=0.02,
        why="its normalizations and Adam make much of the last bits: the first step agrees to 2e-6, and after three"
        " more Inductor's curve differs by 6e-3",
    ),
    "litgpt": Row(
        "litgpt",
        "a small Llama: the loop of its pretraining, and tokens by a cache",
        beside="its latest release excludes the huggingface-hub that transformers needs, and runs with it",
        needs=("jsonargparse[signatures]", "psutil"),
    ),
    "torchrl": Row("torchrl", "advantages of a rollout, and PPO"),
    "safetensors": Row("safetensors", "models and tensors, saved and loaded", ways=_EAGER),
}
"""The rows by name."""
