"""Trains a small GPT, character by character, on the help texts of Python, and lets it write.

    python examples/char_gpt.py                      # with jaten: each graph of the model is one XLA executable
    python examples/char_gpt.py --backend inductor   # the same with PyTorch's own compiler, or with `eager`

The model is plain `torch.nn` and knows nothing of jaten, whose whole use is `torch.compile(model, backend="jaten")`.
"""

import argparse
import time
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

WINDOW = 96  # characters that the model sees at once
WIDTH = 128
HEADS = 4
LAYERS = 3
BATCH = 8
PROMPT = "The for statement is used to "


class Block(nn.Module):
    """A transformer block: causal self-attention, then a perceptron, each added to the residual stream."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(dropout)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Gives the logits of the next character at each position: (batch, length) -> (batch, length, vocabulary)."""

    def __init__(self, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(WINDOW, WIDTH)
        self.blocks = nn.Sequential(*(Block(dropout) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        position = torch.arange(text.shape[1], device=text.device)
        x = self.characters(text) + self.positions(position)
        return self.head(self.norm(self.blocks(x)))


class Text:
    """The help texts as character indices: the first nine tenths to learn from, the rest to validate."""

    def __init__(self) -> None:
        text = "\n\n".join(topics.values())
        self.vocabulary = sorted(set(text))
        self.index = {character: i for i, character in enumerate(self.vocabulary)}
        indices = torch.tensor(self.encode(text))
        self.train, self.validation = indices.tensor_split([len(indices) * 9 // 10])

    def encode(self, text: str) -> list[int]:
        return [self.index[character] for character in text]

    def decode(self, indices: list[int]) -> str:
        return "".join(self.vocabulary[i] for i in indices)


def random_batch(text: Tensor, places: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
    """Windows at random places, and the same windows one character later.

    The generator is their own: they must not depend on how many random numbers the model draws.
    """
    starts = torch.randint(len(text) - WINDOW, (BATCH, 1), generator=places)
    windows = text[starts + torch.arange(WINDOW + 1)].to(device)
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def build(options: argparse.Namespace, vocabulary: int, dropout: float, backend: str) -> nn.Module:
    """The same weights for each call with the same seed."""
    torch.manual_seed(options.seed)
    model = GPT(vocabulary, dropout).to(options.device)
    return model if backend == "eager" else torch.compile(model, backend=backend)


def train(model: nn.Module, text: Text, options: argparse.Namespace, steps: int, title: str) -> list[float]:
    """Trains by AdamW with a warm-up and a cosine decay; returns the loss at each step."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.rate, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    places = torch.Generator().manual_seed(options.seed)
    losses = []
    model.train()
    with tqdm(total=steps * BATCH * WINDOW, desc=title, unit=" tokens", unit_scale=True) as progress:
        for _ in range(steps):
            loss = loss_of(model, random_batch(text.train, places, options.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            progress.update(BATCH * WINDOW)
            progress.set_postfix(loss=f"{losses[-1]:.3f}")
    return losses


@torch.no_grad()
def validate(model: nn.Module, text: Text, device: str, batches: int = 20) -> float:
    model.eval()
    places = torch.Generator().manual_seed(0)
    return sum(loss_of(model, random_batch(text.validation, places, device)).item() for _ in range(batches)) / batches


@torch.no_grad()
def write(model: nn.Module, text: Text, device: str, length: int, temperature: float = 0.7) -> str:
    """Continues the prompt. The model always sees a full window, padded on the right, so that it is compiled once.

    The padding does no harm: attention is causal, and the logits are read at the last character that is real.
    """
    model.eval()
    written = text.encode(PROMPT)
    for _ in range(length):
        visible = written[-WINDOW:]
        window = torch.tensor([visible + [0] * (WINDOW - len(visible))], device=device)
        logits = model(window)[0, len(visible) - 1].cpu()
        written.append(int(torch.multinomial(F.softmax(logits / temperature, dim=-1), 1)))
    return text.decode(written)


def compare_with_eager(text: Text, options: argparse.Namespace, steps: int = 20) -> float:
    """The largest difference between the losses of eager and compiled training. Without dropout: the two draw
    different random numbers."""
    runs = []
    for backend in ("eager", options.backend):
        model = build(options, len(text.vocabulary), dropout=0.0, backend=backend)
        runs.append(train(model, text, options, steps, f"first {steps} steps, {backend}"))
    return max(abs(a - b) for a, b in zip(*runs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="jaten", help="eager, inductor, or jaten (the default)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "jax"], help="where the model lives")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=500, help="how many characters to write")
    options = parser.parse_args()

    text = Text()
    print(f"{len(text.train) + len(text.validation):,} characters, {len(text.vocabulary)} different ones")
    if options.backend != "eager":
        difference = compare_with_eager(text, options)
        print(f"largest difference of the losses between eager and {options.backend}: {difference:.1e}\n")

    model = build(options, len(text.vocabulary), dropout=0.05, backend=options.backend)
    losses = train(model, text, options, options.steps, f"training, {options.backend}")
    last = losses[-20:]
    print(f"train loss {sum(last) / len(last):.3f}, validation loss {validate(model, text, options.device):.3f}\n")
    print(write(model, text, options.device, options.sample))


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - start:.0f} seconds in all")
