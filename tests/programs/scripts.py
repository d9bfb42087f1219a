"""Training scripts as people write them, made small: each takes the device as a string, and returns what it learnt.

Data and noise are drawn on the CPU, so that a script has the same ones on each device.
"""

from __future__ import annotations

import copy
import io
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

Learnt = tuple[list[float], dict[str, Tensor]]


def _learnt(losses: Iterable[Tensor], *modules: nn.Module) -> Learnt:
    state = {f"{i}.{n}": t.detach().cpu() for i, m in enumerate(modules) for n, t in m.state_dict().items()}
    return [loss.item() for loss in losses], state


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class _GPT(nn.Module):
    """With a head tied to the embedding, and a causal mask in a buffer."""

    def __init__(self, vocabulary: int = 11, width: int = 8, length: int = 6) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.block, self.norm = _Block(width, 2), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("causal", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        t = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(t, device=ids.device))
        mask = self.causal[:t, :t] & attention_mask[:, None, None, :].bool()
        return self.head(self.norm(self.block(x, mask)))


def gpt(device: str) -> Learnt:
    """Tied embeddings, padding, weight decay on matrices alone, clipped gradients; then it writes."""
    torch.manual_seed(0)
    model = _GPT().to(device)
    assert model.head.weight is model.tokens.weight
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    losses = []
    for _ in range(3):
        ids = torch.randint(1, 11, (4, 6))
        ids[0, 4:] = 0
        ids = ids.to(device)
        logits = model(ids[:, :-1], ids[:, :-1] != 0)
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].reshape(-1), ignore_index=0)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
    model.eval()
    with torch.no_grad():
        written = torch.full((1, 1), 3, device=device)
        for _ in range(2):
            best = model(written, torch.ones_like(written))[:, -1].topk(2).indices[:, :1]
            written = torch.cat([written, best], 1)
    return _learnt([*losses, *written[0]], model)


class _Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.bn2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.short(x)
        return self.relu(out)


def resnet(device: str) -> Learnt:
    """Mixup, label smoothing, OneCycleLR, a DataLoader, evaluation."""
    torch.manual_seed(0)
    model = nn.Sequential(_Residual(3, 4, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).to(device)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.constant_(module.weight, 0.1)
            module.weight.data.add_(torch.randn(module.weight.shape).to(device) * 0.1)
    data = DataLoader(TensorDataset(torch.randn(12, 3, 8, 8), torch.randint(5, (12,))), batch_size=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=len(data))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    losses = []
    for images, labels in data:
        share = torch.rand(()).item()
        order = torch.randperm(len(images))
        x, y = images.to(device, non_blocking=True), labels.to(device)
        outputs = model(share * x + (1 - share) * x[order])
        loss = share * criterion(outputs, y) + (1 - share) * criterion(outputs, y[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss)
    model.eval()
    with torch.inference_mode():
        correct = sum((model(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in data)
    return _learnt([*losses, torch.as_tensor(correct)], model)


def vae(device: str) -> Learnt:
    """Reparameterization, a loss of two sums, a distribution's KL divergence."""
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(10, 6).to(device), nn.Linear(3, 10).to(device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
    losses = []
    for _ in range(3):
        x = torch.rand(5, 10).to(device)
        mean, log_variance = encoder(x).chunk(2, dim=1)
        z = mean + torch.randn(5, 3).to(device) * torch.exp(0.5 * log_variance)
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
        loss = F.binary_cross_entropy(torch.sigmoid(decoder(z)), x, reduction="sum")
        loss += torch.distributions.kl_divergence(posterior, prior).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return _learnt(losses, encoder, decoder)


def gan(device: str) -> Learnt:
    """Two optimizers, detach, transposed convolutions, weights by `apply`."""

    def initialize(module: nn.Module) -> None:
        if "Conv" in type(module).__name__:
            with torch.no_grad():
                module.weight.copy_(torch.randn(module.weight.shape) * 0.1)

    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.ConvTranspose2d(4, 3, 4, 1, 0, bias=False), nn.BatchNorm2d(3), nn.ReLU(True),
        nn.ConvTranspose2d(3, 1, 4, 2, 1, bias=False), nn.Tanh(),
    ).to(device)  # fmt: skip
    critic = nn.Sequential(nn.Conv2d(1, 3, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Flatten(), nn.Linear(48, 1))
    critic.to(device)
    generator.apply(initialize)
    critic.apply(initialize)
    g, d = (torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.999)) for m in (generator, critic))
    losses = []
    for _ in range(2):
        real, noise = torch.randn(4, 1, 8, 8).to(device), torch.randn(4, 4, 1, 1).to(device)
        labels = torch.full((4, 1), 1.0, device=device)
        critic.zero_grad()
        real_loss = F.binary_cross_entropy_with_logits(critic(real), labels)
        real_loss.backward()
        fake = generator(noise)
        fake_loss = F.binary_cross_entropy_with_logits(critic(fake.detach()), labels.fill_(0))
        fake_loss.backward()
        d.step()
        generator.zero_grad()
        loss = F.binary_cross_entropy_with_logits(critic(fake), labels.fill_(1))
        loss.backward()
        g.step()
        losses += [real_loss, fake_loss, loss]
    return _learnt(losses, generator, critic)


def seq2seq(device: str) -> Learnt:
    """An LSTM over packed sequences, attention, teacher forcing."""
    torch.manual_seed(0)
    embed, encoder = nn.Embedding(9, 4, padding_idx=0), nn.LSTM(4, 3, bidirectional=True, batch_first=True)
    decoder, head = nn.LSTMCell(4, 6), nn.Linear(12, 9)
    modules = nn.ModuleList([embed, encoder, decoder, head]).to(device)
    optimizer = torch.optim.RMSprop(modules.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        source, target, lengths = torch.randint(1, 9, (3, 4)), torch.randint(1, 9, (3, 2)), torch.tensor([2, 4, 3])
        source[torch.arange(4) >= lengths[:, None]] = 0
        source, target = source.to(device), target.to(device)
        packed = pack_padded_sequence(embed(source), lengths, batch_first=True, enforce_sorted=False)
        outputs, (h, c) = encoder(packed)
        memory, _ = pad_packed_sequence(outputs, batch_first=True)
        h, c = (s.transpose(0, 1).flatten(1) for s in (h, c))
        loss = torch.zeros((), device=device)
        for t in range(target.shape[1] - 1):
            h, c = decoder(embed(target[:, t]), (h, c))
            weights = torch.bmm(memory, h[:, :, None]).masked_fill((source == 0)[..., None], -1e9).softmax(1)
            logits = head(torch.cat([h, (weights * memory).sum(1)], -1))
            loss = loss + F.cross_entropy(logits, target[:, t + 1])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(modules.parameters(), 0.5)
        optimizer.step()
        losses.append(loss)
    return _learnt(losses, modules)


def dqn(device: str) -> Learnt:
    """A replay buffer, a target network with soft updates, gather, double Q-learning."""
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    memory: deque[tuple[Tensor, ...]] = deque(maxlen=20)
    losses, state = [], torch.randn(4)
    for step in range(8):
        with torch.no_grad():
            action = online(state.to(device)[None]).argmax(1).item()
        following = torch.randn(4)
        memory.append((state, torch.tensor(action), torch.randn(()), following, torch.tensor(step % 4 == 3)))
        state = following
        if len(memory) < 6:
            continue
        chosen = torch.randperm(len(memory))[:5].tolist()
        s, a, r, f, done = (torch.stack(x).to(device) for x in zip(*(memory[i] for i in chosen), strict=True))
        q = online(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = target(f).gather(1, online(f).argmax(1, keepdim=True)).squeeze(1)
        loss = F.smooth_l1_loss(q, r + 0.9 * best * ~done)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for p, t in zip(online.parameters(), target.parameters(), strict=True):
            t.data.mul_(0.9).add_(0.1 * p.data)
        losses.append(loss)
    return _learnt(losses, online, target)


class _ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 4)
        self.cls, self.positions = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.encoder(x)[:, 0])


def vit_with_ema(device: str) -> Learnt:
    """torch's own Transformer layer, an exponential moving average, warm-up and cosine schedules, accumulation."""
    torch.manual_seed(0)
    model = _ViT().to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1)
    schedules = [warm, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, schedules, milestones=[1])
    losses = []
    for _ in range(3):
        for _ in range(2):
            loss = F.cross_entropy(model(torch.randn(3, 3, 8, 8).to(device)), torch.randint(4, (3,)).to(device)) / 2
            loss.backward()
            losses.append(loss)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        average.update_parameters(model)
    return _learnt(losses, model, average)


def averaged_batch_norm(device: str) -> Learnt:
    """SWA, and the statistics of BatchNorm made anew."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).to(device)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    data, losses = [torch.randn(5, 3) for _ in range(3)], []
    for x in data:
        loss = model(x.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        schedule.step()
        losses.append(loss)
    update_bn(data, average, device=torch.device(device))
    return _learnt(losses, model, average)


def resumed(device: str) -> Learnt:
    """A checkpoint of model, optimizer, schedule and random state in the middle, loaded into fresh ones."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 2)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    torch.manual_seed(0)
    parts, losses, file = make(), [], io.BytesIO()
    for step in range(4):
        model, optimizer, schedule = parts
        loss = model(torch.randn(4, 3).to(device)).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss)
        if step == 1:
            torch.save({"parts": [p.state_dict() for p in parts], "random": torch.get_rng_state()}, file)
            parts = make()
            file.seek(0)
            saved = torch.load(file, map_location=device)
            for part, state in zip(parts, saved["parts"], strict=True):
                part.load_state_dict(state)
            torch.set_rng_state(saved["random"].cpu())
    return _learnt(losses, parts[0])


def ensemble(device: str) -> Learnt:
    """torch.func: models stacked, gradients by vmap of grad."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x, y = torch.randn(3, 5, 3).to(device), torch.randint(2, (3, 5)).to(device)

    def loss_of(p: Any, b: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, (p, b), (x,)), y)

    losses = []
    for _ in range(2):
        losses += list(vmap(loss_of)(parameters, buffers, x, y))
        gradients = vmap(grad(loss_of))(parameters, buffers, x, y)
        parameters = {n: (p - 0.1 * gradients[n]).detach() for n, p in parameters.items()}
    return [v.item() for v in losses], {n: p.cpu() for n, p in parameters.items()}


def mixed_precision(device: str) -> Learnt:
    """autocast and GradScaler, as scripts for CUDA have them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=2)
    losses = []
    for _ in range(4):
        x, y = torch.randn(8, 6).to(device), torch.randint(3, (8,)).to(device)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss)
    return [*(loss.item() for loss in losses), scaler.get_scale()], _learnt([], model)[1]


SCRIPTS: dict[str, Callable[[str], Learnt]] = {
    f.__name__: f for f in (gpt, resnet, vae, gan, seq2seq, dqn, vit_with_ema, averaged_batch_norm, resumed, ensemble)
}
