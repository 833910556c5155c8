"""Holds whole models to PyTorch: the loss and every weight's gradient, for the same weights and batch.

Usage: model_reference.py MODEL_CASES. Ends with 77 (skipped) where PyTorch is missing.
"""

import subprocess
import sys

try:
    import numpy as np
    import torch
    from torch import nn
except ImportError as missing:
    print(f"skipped: {missing}; Debian's packages are python3-numpy and python3-torch")
    sys.exit(77)

from torch_images import CUT, RESIDUAL
from torch_transformer import LINEAR, LLAMA3, Model, Transformer

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
ROWS = 24


class Case:
    """A model as both sides spell it: inputs x outputs numbers in a sample, or context x vocabulary tokens."""

    loss_pieces = (1,)

    def __init__(self, name, loss, inputs, outputs, layers):
        self.name, self.loss, self.inputs, self.outputs = name, loss, inputs, outputs
        self.kind = "numbers"
        self.shards = (1,)
        self.microbatches = ((ROWS, 1), (ROWS // 4, 1), (ROWS // 4, 3))
        self.sizes = [inputs, outputs]
        self.lines = [line for line, _ in layers]
        self.make = lambda: nn.Sequential(*(module for _, make in layers for module in make()))

    def sent(self, inputs):
        """Inputs as strata has them."""
        return inputs

    def batch(self, generator, dtype):
        inputs = torch.randn(ROWS, self.inputs, generator=generator, dtype=torch.float64).to(dtype)
        if self.loss == "cross_entropy":
            return inputs, torch.randint(self.outputs, (ROWS,), generator=generator)
        return inputs, torch.randn(ROWS, self.outputs, generator=generator, dtype=torch.float64).to(dtype)

    def loss_of(self, outputs, targets):
        if self.loss == "cross_entropy":
            return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
        return nn.functional.mse_loss(outputs, targets)


class LanguageCase(Case):
    loss_pieces = (1, 3)

    def __init__(self, name, transformer):
        self.name, self.loss = name, "cross_entropy"
        self.inputs, self.outputs = transformer.context, transformer.vocabulary
        self.microbatches = ((ROWS, 1), (ROWS // 4, 1), (ROWS // 4, 3))
        self.sizes = [self.inputs, self.outputs]
        self.kind = "tokens"
        self.shards = (1, 2)
        self.lines = transformer.lines()
        self.make = lambda: Model(transformer)

    def batch(self, generator, dtype):
        ids = torch.randint(self.outputs, (ROWS, self.inputs + 1), generator=generator)
        return ids[:, :-1], ids[:, 1:]


class ImageCase(Case):
    def __init__(self, name, network):
        self.name, self.loss, self.kind = name, "cross_entropy", "numbers"
        self.shape, self.outputs, self.shards = network.shape, network.classes, network.shards
        # Batch normalisation sees one microbatch at a time.
        self.microbatches = network.microbatches(ROWS)
        self.sizes = [*self.shape, self.outputs]
        self.lines, self.make = network.lines, network.make

    def sent(self, inputs):
        return inputs.permute(0, 2, 3, 1)

    def batch(self, generator, dtype):
        images = torch.randn(ROWS, *self.shape, generator=generator, dtype=torch.float64).to(dtype)
        return images, torch.randint(self.outputs, (ROWS,), generator=generator)


def dense(inputs, outputs, bias=True):
    return f"dense {outputs}" + ("" if bias else " bias=off"), lambda: [nn.Linear(inputs, outputs, bias)]


def dense_relu(inputs, outputs):
    return f"dense {outputs} relu", lambda: [nn.Linear(inputs, outputs), nn.ReLU()]


CASES = [
    Case("classifier", "cross_entropy", 37, 10, [
        dense_relu(37, 64), ("layer_norm", lambda: [nn.LayerNorm(64)]), dense(64, 48),
        ("gelu", lambda: [nn.GELU(approximate="tanh")]), dense(48, 16),
        ("gelu_erf", lambda: [nn.GELU()]), dense(16, 10)]),
    Case("regression", "mean_squared_error", 21, 3, [
        dense(21, 50), ("tanh", lambda: [nn.Tanh()]), dense(50, 30, bias=False),
        ("sigmoid", lambda: [nn.Sigmoid()]), dense(30, 3)]),
    LanguageCase("gpt", Transformer(width=32, heads=4, kv_heads=4, hidden=128, blocks=2, vocabulary=50, context=12,
                                    llama=False)),
    LanguageCase("llama", Transformer(width=32, heads=4, kv_heads=2, hidden=64, blocks=2, vocabulary=50, context=12,
                                      llama=True)),
    *(LanguageCase(f"llama, rotary scaling {scaling['rope_type']}",
                   Transformer(width=32, heads=4, kv_heads=2, hidden=64, blocks=2, vocabulary=50, context=12, llama=True,
                               rotary_scaling=scaling)) for scaling in (LINEAR, LLAMA3)),
    LanguageCase("gpt with adapters", Transformer(width=32, heads=4, kv_heads=4, hidden=128, blocks=1, vocabulary=50,
                                                  context=12, llama=False, lora=4, lora_alpha=6.0)),
    LanguageCase("llama with adapters", Transformer(width=32, heads=4, kv_heads=2, hidden=64, blocks=1, vocabulary=50,
                                                    context=12, llama=True, lora=2, lora_alpha=2.0)),
    ImageCase("convolutions cut by channel", CUT),
    ImageCase("residual blocks", RESIDUAL),
]


def message_of(tensors):
    message = b""
    for tensor in tensors:
        array = np.ascontiguousarray(tensor.detach().numpy())
        message += np.array([array.ndim, *array.shape], dtype=np.int64).tobytes() + array.tobytes()
    return message


def results_of(program, case, dtype_name, way, tensors, shapes):
    command = [program, dtype_name, case.kind, case.loss, *(str(number) for number in way), *case.lines]
    answer = subprocess.run(command, input=message_of(tensors), stdout=subprocess.PIPE, check=True)
    flat = np.frombuffer(answer.stdout, dtype=dtype_name)
    counts = [int(np.prod(shape)) for shape in shapes]
    assert flat.size == sum(counts), f"{case.name}: {flat.size} results where {sum(counts)} were expected"
    return [part.reshape(shape) for part, shape in zip(np.split(flat, np.cumsum(counts)[:-1]), shapes)]


def compare(program, case, dtype_name, generator):
    """Compared results, and a line for each that differs."""
    dtype = getattr(torch, dtype_name)
    torch.manual_seed(3)
    model = case.make().to(dtype)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            # Gains are 1 and biases of a norm 0 at first, which would hide what they are multiplied with.
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    inputs, targets = case.batch(generator, dtype)
    loss = case.loss_of(model(inputs), targets)
    loss.backward()
    names = ["loss", *parameters]
    expected = [loss.detach().numpy(), *(parameter.grad.numpy() for parameter in parameters.values())]
    sent = [torch.tensor(case.sizes), *parameters.values(), case.sent(inputs), targets]
    ways = [(microbatch, stages, shards, loss_pieces)
            for microbatch, stages in case.microbatches
            for shards in case.shards
            for loss_pieces in case.loss_pieces]
    for way in ways:
        results = results_of(program, case, dtype_name, way, sent, [e.shape for e in expected])
        for name, result, wanted in zip(names, results, expected):
            wanted = wanted.astype(np.float64)
            error = np.linalg.norm(result.astype(np.float64) - wanted) / np.linalg.norm(wanted)
            problem = None
            if not error <= TOLERANCE[dtype_name]:
                problem = (f"{case.name} {dtype_name}, microbatches of {way[0]}, {way[1]} stages, {way[2]} shards, "
                           f"loss and (with shards) rows in {way[3]}: {name} differs by {error:.2e}, {TOLERANCE[dtype_name]:.0e} is allowed")
            yield problem


def main():
    torch.set_num_threads(1)
    problems = [problem
                for dtype_name in TOLERANCE
                for case in CASES
                for problem in compare(sys.argv[1], case, dtype_name, torch.Generator().manual_seed(1))]
    different = [problem for problem in problems if problem]
    print("\n".join(different))
    print(f"{len(problems)} results compared with PyTorch {torch.__version__}, {len(different)} differ")
    return 1 if different or not problems else 0


sys.exit(main())
