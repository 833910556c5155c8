"""Holds operations to PyTorch: results, gradients and five steps of each optimizer.

Usage: ops_reference.py OPS_CASES. Ends with 77 (skipped) where PyTorch is missing.
"""

import sys

from torch_cases import backward, compare, differentiable, normals

import torch
import torch.nn.functional as F

STEPS = 5


def layer_cases(generator, dtype):
    """Name, inputs of the program, PyTorch's results (output, then gradients)."""

    def with_gradients(function, parameters, dy_shape):
        return backward(function, parameters, normals(generator, dtype, *dy_shape))

    for rows, inputs, outputs in ((128, 784, 128), (128, 128, 10), (33, 100, 700), (600, 37, 5)):
        parameters = [
            differentiable(generator, dtype, rows, inputs),
            differentiable(generator, dtype, outputs, inputs),
            differentiable(generator, dtype, outputs),
        ]
        yield "dense", *with_gradients(F.linear, parameters, (rows, outputs))

    elementwise = {
        "relu": torch.relu,
        "gelu": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_erf": F.gelu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "softmax": lambda x: torch.softmax(x, dim=-1),
    }
    for name, function in elementwise.items():
        for shape in ((128, 128), (7, 1001)):
            yield name, *with_gradients(function, [differentiable(generator, dtype, *shape)], shape)

    for shape in ((128, 128), (7, 1001)):
        parameters = [
            differentiable(generator, dtype, *shape),
            differentiable(generator, dtype, shape[1]),
            differentiable(generator, dtype, shape[1]),
        ]
        norm = lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias, 1e-5)
        yield "layer_norm", *with_gradients(norm, parameters, shape)

        def rms_norm(x, gain):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain

        for name, one in (("rms_norm", 0.0), ("rms_norm_from_one", 1.0)):
            parameters = [differentiable(generator, dtype, *shape), differentiable(generator, dtype, shape[1])]
            yield name, *with_gradients(lambda x, gain: rms_norm(x, one + gain), parameters, shape)

        for name, function in (("swiglu", F.silu), ("geglu", elementwise["gelu"])):
            parameters = [differentiable(generator, dtype, *shape), differentiable(generator, dtype, *shape)]
            yield name, *with_gradients(lambda gate, up: function(gate) * up, parameters, shape)

    for sequences, tokens, vocabulary, width in ((12, 64, 65, 128), (3, 11, 1000, 37)):
        ids = torch.randint(vocabulary, (sequences, tokens), generator=generator)
        parameters = [
            differentiable(generator, dtype, vocabulary, width),
            differentiable(generator, dtype, tokens + 5, width),
        ]
        embed = lambda table, positions: F.embedding(ids, table) + positions[:tokens]
        inputs, expected = with_gradients(embed, parameters, (sequences, tokens, width))
        yield "embedding", [*inputs, ids], expected

    for rows, outputs in ((128, 10), (9, 5000)):
        x = differentiable(generator, dtype, rows, outputs)
        labels = torch.randint(outputs, (rows,), generator=generator)
        loss = F.cross_entropy(x, labels)
        loss.backward()
        yield "cross_entropy", [x, labels], [loss, x.grad]

        x = differentiable(generator, dtype, rows, outputs)
        target = normals(generator, dtype, rows, outputs)
        loss = F.mse_loss(x, target)
        loss.backward()
        yield "mean_squared_error", [x, target], [loss, x.grad]


def bfloat16_cases(generator, dtype):
    """Inputs that are bfloat16 numbers; results that PyTorch computes from them in float."""

    def rounded(*shape):
        return normals(generator, dtype, *shape).bfloat16().to(dtype).requires_grad_()

    def with_gradients(function, parameters, dy_shape):
        return backward(function, parameters, rounded(*dy_shape))

    if dtype != torch.float32:
        return
    for rows, inputs, outputs in ((128, 784, 128), (128, 128, 10), (33, 100, 700), (600, 37, 5), (256, 96, 1100)):
        parameters = [rounded(rows, inputs), rounded(outputs, inputs), rounded(outputs)]
        yield "bfloat16_dense", *with_gradients(F.linear, parameters, (rows, outputs))
    for shape in ((128, 128), (7, 1001)):
        parameters = [rounded(*shape), rounded(shape[1]), rounded(shape[1])]
        norm = lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias, 1e-5)
        yield "bfloat16_layer_norm", *with_gradients(norm, parameters, shape)


def allowed(name, index, tolerance):
    """Output and input gradient are rounded to bfloat16's 8 bits; weight gradients stay float."""
    return tolerance + (2.0**-8 if name.startswith("bfloat16") and index < 2 else 0.0)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, weight_decay=0.1),
}


def optimizer_cases(generator, dtype):
    for name, make in OPTIMIZERS.items():
        start = normals(generator, dtype, 20011)
        gradients = normals(generator, dtype, STEPS, 20011)
        weight = start.clone().requires_grad_()
        optimizer = make([weight])
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        yield name, [start, gradients], [weight]


sys.exit(compare(sys.argv[1], [layer_cases, bfloat16_cases, optimizer_cases], allowed))
