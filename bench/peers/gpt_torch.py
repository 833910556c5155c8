#!/usr/bin/env python3
"""Tokens a second of GPT-2 in PyTorch on one GPU; prints one line of JSON.

    bench/peers/gpt_torch.py --batch 32
    bench/peers/gpt_torch.py --batch 32 --precision masters --compile max-autotune

The network that strata's preset gpt2-124m trains: pre-norm blocks with biases, learned positions,
tanh gelu, a head that shares the embedding's table (Radford et al. 2019); AdamW that decays
matrices only, the gradient's norm clipped to 1. Tokens are random, and on the device before the
first step.

Precisions: `autocast`, what most people use: float32 weights, products in bfloat16; `masters`:
bfloat16 weights and activations, float32 copies that AdamW updates, as strata with
numerics.dtype=bfloat16; `tf32` and `float32`.
"""
import argparse

import torch
from torch import nn
from torch.nn import functional

import torch_step


def attend(query, key, value):
    """Causal attention; (batch, heads, tokens, head width) each."""
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    # PyTorch before 2.0.
    tokens = query.shape[-2]
    scores = query @ key.transpose(-2, -1) * query.shape[-1]**-0.5
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ value


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.input = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        shape = (batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = self.input(x).view(shape).permute(2, 0, 3, 1, 4)
        return self.output(attend(query, key, value).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """From ids and the ids after them, (batch, tokens) each, to the mean cross-entropy."""

    def __init__(self, options):
        super().__init__()
        self.table = nn.Embedding(options.vocabulary, options.width)
        self.positions = nn.Parameter(torch.empty(options.context, options.width))
        self.blocks = nn.Sequential(
            *(Block(options.width, options.heads) for _ in range(options.blocks)))
        self.norm = nn.LayerNorm(options.width)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        for block in self.blocks:
            for last in (block.attention.output, block.mlp[2]):
                nn.init.normal_(last.weight, std=0.02 / (2 * options.blocks)**0.5)

    def forward(self, ids, targets):
        x = self.norm(self.blocks(self.table(ids) + self.positions))
        logits = functional.linear(x, self.table.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def adamw(options):
    def make(weights):
        groups = [{"params": [w for w in weights if w.dim() > 1], "weight_decay": 0.1},
                  {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0}]
        fused = {"fused": True} if options.device == "cuda" else {}
        return torch.optim.AdamW(groups, lr=0.0006, betas=(0.9, 0.95), **fused)
    return make


def measure(options):
    torch_step.prepare(options)
    model = Gpt(options).to(options.device)
    update = torch_step.Update(model, options, adamw(options), clip_norm=1.0)
    ids = torch.randint(options.vocabulary, (4, options.batch, options.context + 1),
                        device=options.device)
    batches = [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in ids]
    result = torch_step.train(model, update, batches, options)
    return {"model": "gpt", "context": options.context, **result,
            "tokens_per_second": result["samples_per_second"] * options.context}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_step.add_options(parser, ["autocast", "masters", "tf32", "float32"], batch=16)
    parser.add_argument("--context", type=int, default=1024, help="tokens of a sample")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    options = parser.parse_args()
    torch_step.report(lambda: measure(options))


if __name__ == "__main__":
    main()
