"""Decoder-only transformers in PyTorch, operation by operation, with strata's names and order of parameters."""

import math
from dataclasses import dataclass

import torch
from torch import nn

# rope_scaling; with heads of 8 elements and the base 10000 the wavelengths are 6, 63, 628 and 6283: the first is kept and
# the second in between.
LINEAR = {"rope_type": "linear", "factor": 2.5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 200}


@dataclass
class Transformer:
    """The dimensions of a model that both sides build."""

    width: int
    heads: int
    kv_heads: int
    hidden: int
    blocks: int
    vocabulary: int
    context: int
    llama: bool  # rms_norm, swiglu, rotary positions, no bias, no tie; else GPT-2's choices
    rotary_base: float = 10000.0
    rotary_scaling: dict = None  # Hugging Face's rope_scaling
    lora: int = 0  # rank of adapters
    lora_alpha: float = 0.0

    def lines(self):
        """The `layer =` lines."""
        adapters = f" lora={self.lora} lora_alpha={self.lora_alpha}" if self.lora else ""
        if self.llama:
            common = f"norm=rms_norm bias=off{adapters}"
            lines = [f"embedding {self.width}"]
            scaling = ":".join(str(value) for value in (self.rotary_scaling or {"rope_type": "none"}).values())
            rotary = f"rotary={self.rotary_base} rotary_scaling={scaling}"
            attention = f"attention {self.heads} kv_heads={self.kv_heads} {rotary} {common}"
            block = [attention, f"mlp {self.hidden} swiglu {common}"]
            return lines + block * self.blocks + ["rms_norm", "head tied=off"]
        lines = [f"embedding {self.width} positions={self.context}"]
        block = [f"attention {self.heads} kv_heads={self.kv_heads}{adapters}", f"mlp {self.hidden}{adapters}"]
        return lines + block * self.blocks + ["layer_norm", "head"]


class Norm(nn.Module):
    def __init__(self, width, rms):
        super().__init__()
        self.rms = rms
        self.gain = nn.Parameter(torch.ones(width))
        if not rms:
            self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        if self.rms:
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.gain
        return nn.functional.layer_norm(x, (x.shape[-1],), self.gain, self.bias, 1e-5)


def scaled(frequencies, scaling):
    """Frequencies of rotary angles under Hugging Face's rope_scaling, in terms of their wavelengths."""
    if not scaling or scaling["rope_type"] == "default":
        return frequencies
    if scaling["rope_type"] == "longrope":
        return frequencies / torch.tensor(scaling["factors"], dtype=torch.float64)
    divided = frequencies / scaling["factor"]
    if scaling["rope_type"] == "linear":
        return divided
    wavelengths, context = 2 * math.pi / frequencies, scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (context / wavelengths - low) / (high - low)
    between = (1 - smooth) * divided + smooth * frequencies
    return torch.where(wavelengths < context / high, frequencies,
                       torch.where(wavelengths > context / low, divided, between))


def rotated(x, base, scaling=None):
    """x (samples x heads x tokens x size) with elements i and i + size / 2 turned by the token's angle."""
    half = x.shape[-1] // 2
    positions = torch.arange(x.shape[-2], dtype=torch.float64)
    angles = positions[:, None] * scaled(base ** (-torch.arange(half, dtype=torch.float64) / half), scaling)
    magnitude = (scaling or {}).get("magnitude", 1.0)
    cosine, sine = (magnitude * angles.cos()).to(x.dtype), (magnitude * angles.sin()).to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


class Sublayer(nn.Module):
    """Its linear layers, with adapters where the model has them."""

    def add_adapters(self, t, *layers):
        self.scale = t.lora_alpha / t.lora if t.lora else 0.0
        self.adapters = nn.ModuleDict({
            name: nn.ParameterDict({"a": nn.Parameter(0.1 * torch.randn(t.lora, getattr(self, name).in_features)),
                                    "b": nn.Parameter(0.1 * torch.randn(getattr(self, name).out_features, t.lora))})
            for name in layers if t.lora})

    def apply_linear(self, name, x):
        y = getattr(self, name)(x)
        if name in self.adapters:
            y = y + self.scale * (x @ self.adapters[name]["a"].T) @ self.adapters[name]["b"].T
        return y


class Attention(Sublayer):
    def __init__(self, t):
        super().__init__()
        self.t = t
        self.norm = Norm(t.width, t.llama)
        size = t.width // t.heads
        self.qkv = nn.Linear(t.width, (t.heads + 2 * t.kv_heads) * size, not t.llama)
        self.output = nn.Linear(t.width, t.width, not t.llama)
        self.add_adapters(t, "qkv", "output")

    def forward(self, x):
        t, size = self.t, self.t.width // self.t.heads
        queries = t.heads // t.kv_heads
        samples, tokens, _ = x.shape
        # For every key-value head its queries, its key, its value.
        heads = self.apply_linear("qkv", self.norm(x)).view(samples, tokens, t.kv_heads, queries + 2, size)
        q = heads[:, :, :, :queries].reshape(samples, tokens, t.heads, size).transpose(1, 2)
        k = heads[:, :, :, queries].transpose(1, 2)
        v = heads[:, :, :, queries + 1].transpose(1, 2)
        if t.llama:
            q, k = (rotated(x, t.rotary_base, t.rotary_scaling) for x in (q, k))
        k, v = k.repeat_interleave(queries, 1), v.repeat_interleave(queries, 1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(size)
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        y = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        return x + self.apply_linear("output", y.transpose(1, 2).reshape(samples, tokens, t.width))


class Mlp(Sublayer):
    def __init__(self, t):
        super().__init__()
        self.llama = t.llama
        self.norm = Norm(t.width, t.llama)
        self.up = nn.Linear(t.width, t.hidden, not t.llama)
        if t.llama:
            self.gate = nn.Linear(t.width, t.hidden, False)
        self.down = nn.Linear(t.hidden, t.width, not t.llama)
        self.add_adapters(t, *(["up", "gate", "down"] if t.llama else ["up", "down"]))

    def forward(self, x):
        y = self.norm(x)
        if self.llama:
            return x + self.apply_linear(
                "down", nn.functional.silu(self.apply_linear("gate", y)) * self.apply_linear("up", y))
        return x + self.apply_linear("down", nn.functional.gelu(self.apply_linear("up", y), approximate="tanh"))


class Model(nn.Module):
    """From token ids, samples x context, to logits, samples x context x vocabulary."""

    def __init__(self, t):
        super().__init__()
        self.t = t
        self.tokens = nn.Embedding(t.vocabulary, t.width)
        if not t.llama:
            self.positions = nn.Embedding(t.context, t.width)
        self.blocks = nn.ModuleList([make(t) for _ in range(t.blocks) for make in (Attention, Mlp)])
        self.norm = Norm(t.width, t.llama)
        if t.llama:
            self.head = nn.Linear(t.width, t.vocabulary, False)

    def forward(self, ids):
        x = self.tokens(ids)
        if not self.t.llama:
            x = x + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x) if self.t.llama else x @ self.tokens.weight.T
