"""Single convolutions and their gradients, compiled by jaten, beside eager torch's, one thread.

`python -m benchmarks.convolutions [--only PATTERN] [--dtype float32] [--autotune MODE] [--output FILE]`. Prints a
Markdown table of eager torch's times and of the ratios of jaten's to them, and of what jaten's time goes to where it is
over the bar, in the kinds of `benchmarks.profile`. `--output docs/convolutions.md` also makes both a section of that
page, in the place of the last one of this dtype, mode and processor.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch

import jaten_ops  # noqa: F401  # registers the backend
from jaten_ops.xla.autotune_mode import MODES

from .processes import processor
from .profile import kernels_of_xla
from .table import KINDS
from .threads import pin_threads
from .timing import by_turns, ratio

ROUNDS = 9
BAR = 1.5
PROFILED = 20  # calls


class Conv(NamedTuple):
    """A convolution, with one value for all its spatial dimensions."""

    x: Sequence[int]
    outputs: int
    kernel: Sequence[int]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    output_padding: int = 0

    @property
    def settings(self) -> tuple[Any, ...]:
        """The arguments of `aten.convolution` behind the bias."""
        each = [[n] * len(self.kernel) for n in (self.stride, self.padding, self.dilation, self.output_padding)]
        return (*each[:3], self.transposed, each[3], self.groups)

    @property
    def weight(self) -> Sequence[int]:
        channels = (
            (self.x[1], self.outputs // self.groups) if self.transposed else (self.outputs, self.x[1] // self.groups)
        )
        return (*channels, *self.kernel)


# sizes of known networks, at batches of 1 and 8
TABLE: dict[str, Conv] = {
    "resnet stem 7x7": Conv((1, 3, 224, 224), 64, (7, 7), 2, 3),
    "resnet stem 7x7 batch 8": Conv((8, 3, 112, 112), 64, (7, 7), 2, 3),
    "resnet 3x3 64": Conv((1, 64, 56, 56), 64, (3, 3), 1, 1),
    "resnet 3x3 64 batch 8": Conv((8, 64, 28, 28), 64, (3, 3), 1, 1),
    "resnet 3x3 128": Conv((1, 128, 28, 28), 128, (3, 3), 1, 1),
    "resnet 3x3 256": Conv((1, 256, 14, 14), 256, (3, 3), 1, 1),
    "resnet 3x3 512": Conv((1, 512, 7, 7), 512, (3, 3), 1, 1),
    "resnet 3x3 512 batch 8": Conv((8, 512, 7, 7), 512, (3, 3), 1, 1),
    "resnet strided 3x3 64": Conv((1, 64, 56, 56), 128, (3, 3), 2, 1),
    "resnet strided 3x3 256 batch 8": Conv((8, 256, 14, 14), 512, (3, 3), 2, 1),
    "resnet 1x1 256": Conv((1, 64, 56, 56), 256, (1, 1)),
    "resnet 1x1 256 batch 8": Conv((8, 256, 14, 14), 64, (1, 1)),
    "resnet strided 1x1": Conv((1, 256, 56, 56), 512, (1, 1), 2),
    # VGG, AlexNet
    "vgg 3x3 first": Conv((1, 3, 224, 224), 64, (3, 3), 1, 1),
    "vgg 3x3 128 112": Conv((1, 64, 112, 112), 128, (3, 3), 1, 1),
    "alexnet 11x11": Conv((1, 3, 224, 224), 64, (11, 11), 4, 2),
    "alexnet 5x5": Conv((8, 64, 27, 27), 192, (5, 5), 1, 2),
    # CIFAR nets
    "cifar 3x3 16 batch 8": Conv((8, 16, 32, 32), 16, (3, 3), 1, 1),
    "cifar 3x3 32 batch 32": Conv((32, 32, 16, 16), 32, (3, 3), 1, 1),
    "lenet 5x5": Conv((8, 1, 28, 28), 6, (5, 5)),
    "mnist 3x3": Conv((8, 32, 26, 26), 64, (3, 3)),
    # MobileNet, EfficientNet
    "mobilenet stem": Conv((1, 3, 224, 224), 32, (3, 3), 2, 1),
    "depthwise 3x3 96": Conv((1, 96, 112, 112), 96, (3, 3), 2, 1, 1, 96),
    "depthwise 3x3 144": Conv((1, 144, 56, 56), 144, (3, 3), 1, 1, 1, 144),
    "depthwise 3x3 384 batch 8": Conv((8, 384, 14, 14), 384, (3, 3), 1, 1, 1, 384),
    "depthwise 5x5 240": Conv((1, 240, 28, 28), 240, (5, 5), 1, 2, 1, 240),
    "depthwise 5x5 672 strided": Conv((8, 672, 14, 14), 672, (5, 5), 2, 2, 1, 672),
    "depthwise 7x7 96 convnext": Conv((1, 96, 56, 56), 96, (7, 7), 1, 3, 1, 96),
    "depthwise 7x7 384 batch 8": Conv((8, 384, 14, 14), 384, (7, 7), 1, 3, 1, 384),
    "convnext patches 4x4": Conv((1, 3, 224, 224), 96, (4, 4), 4),
    "convnext downsample 2x2": Conv((1, 96, 56, 56), 192, (2, 2), 2),
    "vit patches 16x16": Conv((1, 3, 224, 224), 192, (16, 16), 16),
    # filters of images, and the ends of networks that make images
    "filter 5x5": Conv((1, 1, 256, 256), 1, (5, 5), 1, 2),
    "gradients of grey images 3x3": Conv((8, 1, 64, 64), 2, (3, 3), 1, 1),
    "colours 3x3": Conv((1, 3, 224, 224), 3, (3, 3), 1, 1),
    "windows of SSIM 11x11": Conv((8, 3, 74, 74), 3, (11, 11), 1, 0, 1, 3),
    "decoder's last 3x3": Conv((8, 16, 64, 64), 3, (3, 3), 1, 1),
    # groups
    "resnext 3x3 32 groups": Conv((1, 128, 56, 56), 128, (3, 3), 1, 1, 1, 32),
    "resnext 3x3 32 groups batch 8": Conv((8, 256, 14, 14), 256, (3, 3), 1, 1, 1, 32),
    "regnet 3x3 groups of 24": Conv((1, 144, 28, 28), 144, (3, 3), 1, 1, 1, 6),
    "regnet 3x3 groups strided": Conv((1, 120, 28, 28), 120, (3, 3), 2, 1, 1, 5),
    "shufflenet 1x1 groups": Conv((1, 240, 28, 28), 60, (1, 1), 1, 0, 1, 3),
    "2 groups alexnet 5x5": Conv((1, 96, 27, 27), 256, (5, 5), 1, 2, 1, 2),
    # dilation
    "deeplab 3x3 dilation 2": Conv((1, 256, 28, 28), 256, (3, 3), 1, 2, 2),
    "deeplab aspp dilation 12": Conv((1, 256, 28, 28), 64, (3, 3), 1, 12, 12),
    "dilated depthwise": Conv((1, 128, 32, 32), 128, (3, 3), 1, 2, 2, 128),
    # U-Net, segmentation
    "unet 3x3 32 128": Conv((1, 32, 128, 128), 32, (3, 3), 1, 1),
    "unet 3x3 64 64 batch 8": Conv((8, 32, 64, 64), 64, (3, 3), 1, 1),
    "unet head 1x1": Conv((1, 32, 128, 128), 2, (1, 1)),
    "inception 1x7": Conv((1, 128, 17, 17), 128, (1, 7), 1, 0),
    "inception 7x1 batch 8": Conv((8, 128, 17, 17), 192, (7, 1), 1, 0),
    # transposed
    "unet up 2x2": Conv((1, 128, 32, 32), 64, (2, 2), 2, 0, transposed=True),
    "dcgan 4x4 first": Conv((8, 100, 1, 1), 256, (4, 4), 1, 0, transposed=True),
    "dcgan 4x4": Conv((8, 128, 16, 16), 64, (4, 4), 2, 1, transposed=True),
    "dcgan 4x4 last": Conv((8, 64, 32, 32), 3, (4, 4), 2, 1, transposed=True),
    "transposed 3x3 output padding": Conv((1, 64, 56, 56), 32, (3, 3), 2, 1, transposed=True, output_padding=1),
    # 1d
    "wav2vec 10": Conv((1, 1, 16000), 128, (10,), 5),
    "wav2vec 3": Conv((1, 256, 3199), 256, (3,), 2),
    "tcn 3 dilation 4": Conv((8, 64, 256), 64, (3,), 1, 4, 4),
    "conformer depthwise 31": Conv((1, 144, 400), 144, (31,), 1, 15, 1, 144),
    "hifigan transposed 16": Conv((1, 128, 100), 64, (16,), 8, 4, transposed=True),
    # volumes
    "r3d stem 3x7x7": Conv((1, 3, 8, 56, 56), 64, (3, 7, 7), 2, 3),
    "r3d 3x3x3 64": Conv((1, 64, 8, 28, 28), 64, (3, 3, 3), 1, 1),
    "unet3d 3x3x3 16 batch 2": Conv((2, 16, 32, 32, 32), 16, (3, 3, 3), 1, 1),
    "video 1x3x3": Conv((1, 64, 8, 28, 28), 64, (1, 3, 3), 1, 0),
}

PARTS = ("forward", "input's gradient", "weight's gradient")


class Measured(NamedTuple):
    """A convolution or a gradient.

    Attributes:
        eager: seconds of eager torch's call.
        ratio: of jaten's time to that.
        kinds: milliseconds of jaten's call by kinds of work, and the rest as "around", if the ratio is over the bar.
    """

    eager: float
    ratio: float
    kinds: Mapping[str, float]


Rows = dict[str, list[Measured]]


def jobs(conv: Conv, dtype: torch.dtype) -> Iterator[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    """A function and its arguments for each of `PARTS`."""
    x, weight = torch.randn(*conv.x).to(dtype), torch.randn(*conv.weight).to(dtype)

    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution(x, weight, None, *conv.settings)

    def gradient(number: int) -> Callable[..., Any]:
        mask = [number == 0, number == 1, False]

        def backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten.convolution_backward(grad, x, weight, None, *conv.settings, mask)[number]

        return backward

    grad = torch.randn_like(forward(x, weight))
    yield forward, (x, weight)
    yield gradient(0), (grad, x, weight)
    yield gradient(1), (grad, x, weight)


def measured(conv: Conv, dtype: torch.dtype, options: dict[str, Any]) -> list[Measured]:
    """The times of each of `PARTS`."""
    rows = []
    for function, given in jobs(conv, dtype):
        torch._dynamo.reset()
        gc.collect()  # of programs that are gone, which the profile would have to tell from this one
        compiled = torch.compile(function, backend="jaten", fullgraph=True, dynamic=False, options=options)
        found, expected = compiled(*given), function(*given)
        bound = 0.02 if dtype == torch.bfloat16 else 1e-4  # of the largest element
        assert (found - expected).abs().max() <= bound * expected.abs().max(), "they differ"
        calls = {"eager": functools.partial(function, *given), "jaten": functools.partial(compiled, *given)}
        timings = by_turns(calls, ROUNDS)
        over = ratio(timings["jaten"], timings["eager"]).median
        rows.append(Measured(timings["eager"].median, over, _profile(calls["jaten"]) if over > BAR else {}))
    return rows


def _profile(call: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a call by kinds of work."""
    begun: list[float] = []

    def timed() -> None:
        begun.append(time.perf_counter())
        call()
        begun[-1] = time.perf_counter() - begun[-1]

    kinds = kernels_of_xla(timed, PROFILED)
    return kinds | {"around": max(0.0, statistics.mean(begun) * 1e3 - kinds.total())}


def table(rows: Rows) -> Iterator[str]:
    """The lines of a Markdown table, and of what it says in sum."""
    yield f"| convolution | {' | '.join(f'eager, {part} | jaten / eager' for part in PARTS)} |"
    yield f"| --- |{' ---: |' * 2 * len(PARTS)}"
    for name, parts in rows.items():
        ratios = [f"**{part.ratio:.2f}**" if part.ratio > BAR else f"{part.ratio:.2f}" for part in parts]
        cells = [f"{part.eager * 1e6:.0f} µs | {shown}" for part, shown in zip(parts, ratios, strict=True)]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    for number, part in enumerate(PARTS):
        ratios = [parts[number].ratio for parts in rows.values()]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        over = sum(r > BAR for r in ratios)
        most = f"at most {max(ratios):.2f}, {over} of {len(ratios)} over {BAR}"
        yield f"- {part}: {mean:.2f} in the geometric mean, {most}"


def profiles(rows: Rows) -> Iterator[str]:
    """The lines of a Markdown table of what the time goes to where the ratio is over the bar."""
    missed = [(name, *of) for name, parts in rows.items() for of in zip(PARTS, parts, strict=True) if of[1].kinds]
    kinds = [kind for kind in KINDS if kind != "optimizer"]
    if missed:
        yield f"\nWhat those over {BAR} take, in µs of a call:\n"
        yield f"| convolution | part | ratio | eager | jaten | {' | '.join(kinds)} |"
        yield f"| --- | --- |{' ---: |' * (len(kinds) + 3)}"
    for name, part, found in missed:
        milliseconds = found.eager * 1e3, sum(found.kinds.values()), *(found.kinds.get(kind, 0.0) for kind in kinds)
        times = [f"{ms * 1e3:.0f}" for ms in milliseconds]
        yield f"| {name} | {part} | {found.ratio:.2f} | {' | '.join(times)} |"


PAGE = """# Single convolutions

Made by `python -m benchmarks.convolutions --output docs/convolutions.md`, with `--dtype bfloat16` and `--autotune
all` for the sections that say so: convolutions with the sizes of layers of known networks, and their gradients,
each a program of its own. Images have channels first; the time to bring them into another order is in jaten's. Times
are medians of turns in one process, ratios medians of the ratios within each round: below 1, jaten is faster. Those
over 1.5 are bold, and a second table says what their time goes to, by JAX's profiler in calls one after the other:
products are what libraries compute, oneDNN with its own reordering; loops what XLA compiles; moves transpositions and
copies; around is the rest.
"""


def with_section(page: str, head: str, body: str) -> str:
    """The text of the page with a section of this title, new or in the place of the last one."""
    _, *sections = (page or PAGE).split("\n## ")
    kept = [s.rstrip("\n") for s in sections if s.partition("\n")[0] != head]
    parts = [PAGE, *(f"## {s}\n" for s in sorted([*kept, f"{head}\n\n{body.rstrip()}"]))]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of names")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--autotune", default="off", choices=MODES)
    parser.add_argument("--output", type=Path, help="the page that the table becomes a section of")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    pin_threads(1)
    chosen = {name: conv for name, conv in TABLE.items() if fnmatchcase(name, options.only)}
    rows: Rows = {}
    kernels_of_xla(lambda: None, 1)  # the memory for the first profile is mapped while calls are
    with torch.no_grad():
        for done, (name, conv) in enumerate(chosen.items(), 1):
            print(f"\r{done} of {len(chosen)}: {name:40}", end="", file=sys.stderr)
            rows[name] = measured(conv, getattr(torch, options.dtype), {"autotune": options.autotune})
    head = f"{options.dtype}, {processor()}, one thread" + (", autotune" if options.autotune != "off" else "")
    body = "\n".join([*table(rows), *profiles(rows)])
    print(f"\n{head}\n\n{body}")
    if options.output:
        page = options.output.read_text(encoding="utf-8") if options.output.exists() else ""
        options.output.write_text(with_section(page, head, body), encoding="utf-8")


if __name__ == "__main__":
    main()
