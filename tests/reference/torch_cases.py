"""What the programs that hold operations to PyTorch share. Ends with 77 (skipped) where PyTorch is missing."""

import subprocess
import sys

try:
    import numpy as np
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; Debian's packages are python3-numpy and python3-torch")
    sys.exit(77)

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def ours(program, case, dtype, inputs, shapes):
    """Results of one case, as arrays of the given shapes."""
    message = b""
    for tensor in inputs:
        array = np.ascontiguousarray(tensor.detach().numpy())
        message += np.array([array.ndim, *array.shape], dtype=np.int64).tobytes() + array.tobytes()
    answer = subprocess.run([program, case, dtype], input=message, stdout=subprocess.PIPE, check=True)
    flat = np.frombuffer(answer.stdout, dtype=dtype)
    sizes = [int(np.prod(shape)) for shape in shapes]
    assert flat.size == sum(sizes), f"{case}: {flat.size} results"
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes)]


def normals(generator, dtype, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def differentiable(generator, dtype, *shape):
    return normals(generator, dtype, *shape).requires_grad_()


def backward(function, parameters, dy):
    """The inputs of a case, and PyTorch's output and gradients."""
    y = function(*parameters)
    y.backward(dy)
    return [*parameters, dy], [y, *(parameter.grad for parameter in parameters)]


def same_limit(name, index, tolerance):
    return tolerance


def compare(program, sources, allowed=same_limit, described=0):
    """Compares every case of `sources`, functions (generator, dtype) -> (name, inputs, results); names a case by
    its input number `described`. Returns the exit code."""
    torch.set_num_threads(1)
    failures = 0
    checks = 0
    for dtype_name, tolerance in TOLERANCE.items():
        dtype = getattr(torch, dtype_name)
        generator = torch.Generator().manual_seed(1)
        for source in sources:
            for name, inputs, expected in source(generator, dtype):
                expected = [tensor.detach().numpy() for tensor in expected]
                results = ours(program, name, dtype_name, inputs, [e.shape for e in expected])
                for index, (result, wanted) in enumerate(zip(results, expected)):
                    wanted = wanted.astype(np.float64)
                    difference = np.linalg.norm(result.astype(np.float64) - wanted)
                    checks += 1
                    limit = allowed(name, index, tolerance)
                    if not difference <= limit * np.linalg.norm(wanted):
                        failures += 1
                        extents = "x".join(map(str, inputs[described].shape))
                        print(f"{name} {dtype_name} {extents}: result {index} differs by "
                              f"{difference / np.linalg.norm(wanted):.2e}, {limit:.0e} is allowed")
    print(f"{checks} results compared with PyTorch {torch.__version__}, {failures} differ")
    return 1 if failures or checks == 0 else 0
