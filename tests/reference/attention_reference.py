"""Holds attention with its masks, rotary positions, the split cross-entropy and the preference loss to PyTorch: results and gradients.

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
# tokens of a document on average, and of a window; 0: none
MASKS = ((20, 0), (5, 0), (1000, 30), (40, 9))


def turned(x):
    """x (..., tokens, head size) turned by its positions, halves of a head with each other."""
    tokens, size = x.shape[-2:]
    frequencies = THETA ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequencies)
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def hidden_tokens(shape, starts, window):
    """Which keys a query does not see, sequences x 1 x 1 x queries x keys."""
    tokens = torch.arange(shape[1])
    query, key = tokens[:, None], tokens[None, :]
    hidden = (key > query) | ((window > 0) & (key <= query - window)) | (key < starts[:, :, None])
    return hidden[:, None, None]


def attention(qkv, shape, turn, hidden=None):
    sequences, tokens, kv_heads, queries, size = shape
    heads = qkv.view(sequences, tokens, kv_heads, queries + 2, size).permute(0, 2, 3, 1, 4)
    q, k, v = heads[:, :, :queries], heads[:, :, queries:-1], heads[:, :, -1:]
    if turn:
        q, k = turned(q), turned(k)
    scores = q @ k.transpose(-1, -2) / math.sqrt(size)
    if hidden is None:
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    y = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ v
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
        for document, window in MASKS:
            begins = torch.rand(sequences, tokens, generator=generator) < 1 / document
            starts = torch.where(begins, torch.arange(tokens), 0).cummax(dim=1).values
            qkv = normals(generator, dtype, rows, kv_heads * (queries + 2) * size).requires_grad_()
            dy = normals(generator, dtype, rows, kv_heads * queries * size)
            y = attention(qkv, shape, True, hidden_tokens(shape, starts, window))
            y.backward(dy)
            yield "masked_attention", [torch.tensor(shape), torch.tensor([window]), starts, qkv, dy], [y, qkv.grad]

    for shards, rows, ids, uncounted, smoothing, factor in (
            (1, 768, 65, 0, 0, 0), (4, 50, 13, 0, 0, 0), (3, 9, 5000, 0, 0, 0), (1, 99, 65, 40, 0, 0), (3, 50, 13, 9, 0, 0),
            (1, 99, 65, 40, 0.125, 0), (3, 50, 13, 9, 0, 0.01), (4, 50, 13, 7, 0.25, 0.001), (2, 9, 5000, 0, 0.1, 0.1)):
        logits = normals(generator, dtype, shards, rows, ids).requires_grad_()
        targets = torch.randint(shards * ids, (rows,), generator=generator)
        targets[torch.randperm(rows, generator=generator)[:uncounted]] = -1
        joined = logits.permute(1, 0, 2).reshape(rows, shards * ids)
        terms = torch.tensor([smoothing, factor], dtype=dtype)
        loss = F.cross_entropy(joined, targets, ignore_index=-1, label_smoothing=terms[0].item())
        loss = loss + terms[1] * torch.logsumexp(joined, 1)[targets >= 0].square().mean()
        loss.backward()
        yield "split_cross_entropy", [logits, targets, terms], [loss, logits.grad]

    for shards, samples, tokens, ids, beta in ((1, 5, 40, 65, 0.1), (3, 4, 25, 13, 0.5), (2, 1, 9, 5000, 2)):
        rows = samples * tokens
        logits = normals(generator, dtype, shards, rows, ids).requires_grad_()
        targets = torch.randint(shards * ids, (rows,), generator=generator)
        targets[torch.rand(rows, generator=generator) < 0.4] = -1
        starts = torch.zeros(samples, tokens, dtype=torch.int64)
        for sample in starts:
            begin = torch.randint(1, tokens, (1,), generator=generator).item()
            sample[begin:] = begin
        references = normals(generator, dtype, samples)
        joined = logits.permute(1, 0, 2).reshape(rows, shards * ids)
        likelihoods = F.log_softmax(joined, 1).gather(1, targets.clamp(min=0)[:, None])[:, 0] * (targets >= 0)
        differences = (likelihoods.view(samples, tokens) * torch.where(starts > 0, -1, 1)).sum(1)
        loss = -F.logsigmoid(beta * (differences - references)).mean()
        loss.backward()
        yield ("preference_loss", [logits, targets, torch.zeros(2, dtype=dtype), torch.tensor([beta], dtype=dtype), starts,
                                   references], [loss, logits.grad])


sys.exit(compare(sys.argv[1], [cases], described=1))
