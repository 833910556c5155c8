"""Holds operations to PyTorch: results, gradients and five steps of each optimizer.

Usage: ops_reference.py OPS_CASES. Ends with 77 (skipped) where PyTorch is missing.
"""

import subprocess
import sys

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing}; Debian's packages are python3-numpy and python3-torch")
    sys.exit(77)

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
STEPS = 5


def ours(program, case, dtype, inputs, shapes):
    """Results of one case, as arrays of the given shapes."""
    message = b""
    for tensor in inputs:
        array = np.ascontiguousarray(tensor.detach().numpy())
        message += np.array([array.ndim, *array.shape], dtype=np.int64).tobytes() + array.tobytes()
    answer = subprocess.run([program, case, dtype], input=message, stdout=subprocess.PIPE, check=True)
    flat = np.frombuffer(answer.stdout, dtype=dtype)
    assert flat.size == sum(int(np.prod(shape)) for shape in shapes), f"{case}: {flat.size} results"
    arrays = []
    for shape in shapes:
        count = int(np.prod(shape))
        arrays.append(flat[:count].reshape(shape))
        flat = flat[count:]
    return arrays


def normals(generator, dtype, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def differentiable(generator, dtype, *shape):
    return normals(generator, dtype, *shape).requires_grad_()


def layer_cases(generator, dtype):
    """Name, inputs of the program, PyTorch's results (output, then gradients)."""

    def backward(function, parameters, dy_shape):
        dy = normals(generator, dtype, *dy_shape)
        y = function(*parameters)
        y.backward(dy)
        return [*parameters, dy], [y, *(parameter.grad for parameter in parameters)]

    for rows, inputs, outputs in ((128, 784, 128), (128, 128, 10), (33, 100, 700), (600, 37, 5)):
        parameters = [
            differentiable(generator, dtype, rows, inputs),
            differentiable(generator, dtype, outputs, inputs),
            differentiable(generator, dtype, outputs),
        ]
        yield "dense", *backward(F.linear, parameters, (rows, outputs))

    elementwise = {
        "relu": torch.relu,
        "gelu": lambda x: F.gelu(x, approximate="tanh"),
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "softmax": lambda x: torch.softmax(x, dim=-1),
    }
    for name, function in elementwise.items():
        for shape in ((128, 128), (7, 1001)):
            yield name, *backward(function, [differentiable(generator, dtype, *shape)], shape)

    for shape in ((128, 128), (7, 1001)):
        parameters = [
            differentiable(generator, dtype, *shape),
            differentiable(generator, dtype, shape[1]),
            differentiable(generator, dtype, shape[1]),
        ]
        norm = lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias, 1e-5)
        yield "layer_norm", *backward(norm, parameters, shape)

        def rms_norm(x, gain):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain

        parameters = [differentiable(generator, dtype, *shape), differentiable(generator, dtype, shape[1])]
        yield "rms_norm", *backward(rms_norm, parameters, shape)

        parameters = [differentiable(generator, dtype, *shape), differentiable(generator, dtype, *shape)]
        yield "swiglu", *backward(lambda gate, up: F.silu(gate) * up, parameters, shape)

    for sequences, tokens, vocabulary, width in ((12, 64, 65, 128), (3, 11, 1000, 37)):
        ids = torch.randint(vocabulary, (sequences, tokens), generator=generator)
        parameters = [
            differentiable(generator, dtype, vocabulary, width),
            differentiable(generator, dtype, tokens + 5, width),
        ]
        embed = lambda table, positions: F.embedding(ids, table) + positions[:tokens]
        inputs, expected = backward(embed, parameters, (sequences, tokens, width))
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

    def backward(function, parameters, dy_shape):
        dy = rounded(*dy_shape)
        y = function(*parameters)
        y.backward(dy)
        return [*parameters, dy], [y, *(parameter.grad for parameter in parameters)]

    if dtype != torch.float32:
        return
    for rows, inputs, outputs in ((128, 784, 128), (128, 128, 10), (33, 100, 700), (600, 37, 5), (256, 96, 1100)):
        parameters = [rounded(rows, inputs), rounded(outputs, inputs), rounded(outputs)]
        yield "bfloat16_dense", *backward(F.linear, parameters, (rows, outputs))
    for shape in ((128, 128), (7, 1001)):
        parameters = [rounded(*shape), rounded(shape[1]), rounded(shape[1])]
        norm = lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias, 1e-5)
        yield "bfloat16_layer_norm", *backward(norm, parameters, shape)


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


def main():
    program = sys.argv[1]
    torch.set_num_threads(1)
    failures = 0
    checks = 0
    for dtype_name, tolerance in TOLERANCE.items():
        dtype = getattr(torch, dtype_name)
        generator = torch.Generator().manual_seed(1)
        for cases in (layer_cases, bfloat16_cases, optimizer_cases):
            for name, inputs, expected in cases(generator, dtype):
                expected = [tensor.detach().numpy() for tensor in expected]
                results = ours(program, name, dtype_name, inputs, [e.shape for e in expected])
                for index, (result, wanted) in enumerate(zip(results, expected)):
                    wanted = wanted.astype(np.float64)
                    error = np.linalg.norm(result.astype(np.float64) - wanted) / np.linalg.norm(wanted)
                    checks += 1
                    limit = allowed(name, index, tolerance)
                    if not error <= limit:
                        failures += 1
                        shape = "x".join(map(str, inputs[0].shape))
                        print(f"{name} {dtype_name} {shape}: result {index} differs by {error:.2e}, "
                              f"{limit:.0e} is allowed")
    print(f"{checks} results compared with PyTorch {torch.__version__}, {failures} differ")
    return 1 if failures or checks == 0 else 0


sys.exit(main())
