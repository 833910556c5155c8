"""Holds attention with its masks, caps and scales, rotary positions, head norms, the split cross-entropy and the preference loss to PyTorch: results and gradients.

Usage: attention_reference.py ATTENTION_CASES. Ends with 77 (skipped) where PyTorch is missing.
"""

import math
import sys

from torch_cases import backward, compare, differentiable, normals

import torch
import torch.nn.functional as F

THETA = 10000.0
# sequences, tokens, key-value heads, queries of each, head size
SHAPES = ((12, 64, 4, 1, 32), (2, 200, 2, 3, 64), (1, 77, 1, 4, 10), (3, 1, 2, 1, 8))
# tokens of a document on average, and of a window; 0: none
MASKS = ((20, 0), (5, 0), (1000, 30), (40, 9))
# scale and cap of the scores, share of a head that turns, factor and context of yarn; 0: the default, none
PLAIN = (0, 0, 1, 0, 0)
VARIANTS = ((0.3, 0, 1, 0, 0), (0, 2, 1, 0, 0), (0.4, 5, 0.5, 0, 0), (0, 0, 0.25, 0, 0), (0, 0, 1, 4, 2048), (0, 0, 0.5, 8, 512))


def yarn_bounds(size, context):
    """The pairs that turn 32 times in the context and once, as whole numbers."""
    pairs = [size * math.log(context / (2 * math.pi * turns)) / (2 * math.log(THETA)) for turns in (32, 1)]
    first, last = max(math.floor(pairs[0]), 0), min(math.ceil(pairs[1]), size - 1)
    return first, last + (0.001 if first == last else 0)


def turned(x, share=1, factor=0, context=0):
    """x (..., tokens, head size) turned by its positions, halves of the first part of a head with each other."""
    tokens, size = x.shape[-2], int(share * x.shape[-1])
    frequencies = THETA ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    magnitude = 1
    if factor > 0:
        first, last = yarn_bounds(size, context)
        kept = 1 - ((torch.arange(size // 2, dtype=torch.float64) - first) / (last - first)).clamp(0, 1)
        frequencies = frequencies * kept + frequencies / factor * (1 - kept)
        magnitude = 0.1 * math.log(factor) + 1
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequencies)
    cosines, sines = (magnitude * angles.cos()).to(x.dtype), (magnitude * angles.sin()).to(x.dtype)
    first, second = x[..., :size].chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines, x[..., size:]), dim=-1)


def hidden_tokens(shape, starts, window):
    """Which keys a query does not see, sequences x 1 x 1 x queries x keys."""
    tokens = torch.arange(shape[1])
    query, key = tokens[:, None], tokens[None, :]
    hidden = (key > query) | ((window > 0) & (key <= query - window)) | (key < starts[:, :, None])
    return hidden[:, None, None]


def attention(qkv, shape, turn, hidden=None, variant=PLAIN):
    sequences, tokens, kv_heads, queries, size = shape
    heads = qkv.view(sequences, tokens, kv_heads, queries + 2, size).permute(0, 2, 3, 1, 4)
    q, k, v = heads[:, :, :queries], heads[:, :, queries:-1], heads[:, :, -1:]
    if turn:
        q, k = turned(q, *variant[2:]), turned(k, *variant[2:])
    scale, cap = variant[:2]
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(size))
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if hidden is None:
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    y = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ v
    return y.permute(0, 3, 1, 2, 4).reshape(sequences * tokens, kv_heads * queries * size)


def head_norm(qkv, query_weight, key_weight, shape, one):
    """Each head by its own root mean square, or with weights of all heads all by one."""
    sequences, tokens, kv_heads, queries, size = shape
    q, k, v = qkv.view(-1, kv_heads, queries + 2, size).split((queries, 1, 1), dim=2)

    def normed(x, weight):
        flat = x.reshape(len(x), -1, len(weight))
        return (flat * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + 1e-6) * (one + weight)).view(x.shape)

    return torch.cat((normed(q, query_weight), normed(k, key_weight), v), dim=2).view(qkv.shape)


def cases(generator, dtype):
    """Name, inputs of the program, PyTorch's results."""
    for shape in SHAPES:
        sequences, tokens, kv_heads, queries, size = shape
        rows = sequences * tokens
        variants = [(name, PLAIN) for name in ("attention", "rotary_attention")]
        variants += [("rotary_attention", variant) for variant in VARIANTS if int(size * variant[2]) % 2 == 0]
        for name, variant in variants:
            qkv = normals(generator, dtype, rows, kv_heads * (queries + 2) * size).requires_grad_()
            dy = normals(generator, dtype, rows, kv_heads * queries * size)
            y = attention(qkv, shape, name == "rotary_attention", variant=variant)
            y.backward(dy)
            yield name, [torch.tensor(shape + variant, dtype=torch.float64), qkv, dy], [y, qkv.grad]
        for (document, window), variant in zip(MASKS, (PLAIN, PLAIN, PLAIN, VARIANTS[2] if size % 4 == 0 else PLAIN)):
            begins = torch.rand(sequences, tokens, generator=generator) < 1 / document
            starts = torch.where(begins, torch.arange(tokens), 0).cummax(dim=1).values
            qkv = normals(generator, dtype, rows, kv_heads * (queries + 2) * size).requires_grad_()
            dy = normals(generator, dtype, rows, kv_heads * queries * size)
            y = attention(qkv, shape, True, hidden_tokens(shape, starts, window), variant)
            y.backward(dy)
            yield ("masked_attention", [torch.tensor(shape + variant, dtype=torch.float64), torch.tensor([window]), starts, qkv, dy],
                   [y, qkv.grad])

        for name, one in (("head_norm", 0.0), ("head_norm_from_one", 1.0)):
            for query_weights, key_weights in ((size, size), (kv_heads * queries * size, kv_heads * size)):
                parameters = [differentiable(generator, dtype, *extents)
                              for extents in ((rows, kv_heads * (queries + 2) * size), (query_weights,), (key_weights,))]
                inputs, expected = backward(lambda *given: head_norm(*given, shape, one), parameters,
                                            normals(generator, dtype, *parameters[0].shape))
                yield name, [torch.tensor(shape + PLAIN, dtype=torch.float64), *inputs], expected

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
