"""Holds attention, rotary positions and the split cross-entropy to PyTorch: results and gradients.

Usage: attention_reference.py ATTENTION_CASES. Ends with 77 (skipped) where PyTorch is missing.
"""

import math
import sys

from torch_cases import compare, normals

import torch
import torch.nn.functional as F

THETA = 10000.0
# sequences, tokens, key-value heads, queries of each, head size
SHAPES = ((12, 64, 4, 1, 32), (2, 200, 2, 3, 64), (1, 77, 1, 4, 10), (3, 1, 2, 1, 8))


def turned(x):
    """x (..., tokens, head size) turned by its positions, halves of a head with each other."""
    tokens, size = x.shape[-2:]
    frequencies = THETA ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequencies)
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def attention(qkv, shape, turn):
    sequences, tokens, kv_heads, queries, size = shape
    heads = qkv.view(sequences, tokens, kv_heads, queries + 2, size).permute(0, 2, 3, 1, 4)
    q, k, v = heads[:, :, :queries], heads[:, :, queries:-1], heads[:, :, -1:]
    if turn:
        q, k = turned(q), turned(k)
    scores = q @ k.transpose(-1, -2) / math.sqrt(size)
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    y = torch.softmax(scores.masked_fill(later, -math.inf), dim=-1) @ v
    return y.permute(0, 3, 1, 2, 4).reshape(sequences * tokens, kv_heads * queries * size)


def cases(generator, dtype):
    """Name, inputs of the program, PyTorch's results."""
    for shape in SHAPES:
        sequences, tokens, kv_heads, queries, size = shape
        rows = sequences * tokens
        for name in ("attention", "rotary_attention"):
            qkv = normals(generator, dtype, rows, kv_heads * (queries + 2) * size).requires_grad_()
            dy = normals(generator, dtype, rows, kv_heads * queries * size)
            y = attention(qkv, shape, name == "rotary_attention")
            y.backward(dy)
            yield name, [torch.tensor(shape), qkv, dy], [y, qkv.grad]

    for shards, rows, ids in ((1, 768, 65), (4, 50, 13), (3, 9, 5000)):
        logits = normals(generator, dtype, shards, rows, ids).requires_grad_()
        targets = torch.randint(shards * ids, (rows,), generator=generator)
        loss = F.cross_entropy(logits.permute(1, 0, 2).reshape(rows, shards * ids), targets)
        loss.backward()
        yield "split_cross_entropy", [logits, targets], [loss, logits.grad]


sys.exit(compare(sys.argv[1], [cases], described=1))
