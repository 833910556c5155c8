#!/usr/bin/env python3
"""How fast the GPU multiplies matrices in fact, in bfloat16 and tf32; prints one line of JSON.

    bench/peers/matrix_peak.py

Square matrices of normal numbers (zeros would draw less power, and clocks would be higher than in
training); for each size the median of --repeats products, in TFLOP/s of 2 n^3 FLOP a product. The
peak is the fastest size's: what run.peak_tflops can be set to.
"""
import argparse, statistics

import torch

import torch_step

TYPES = {"bfloat16": torch.bfloat16, "tf32": torch.float32}


def tflops(size, dtype, options):
    left, right = (torch.randn(size, size, device=options.device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    for _ in range(options.warmup):
        torch.matmul(left, right, out=product)
    clock = torch_step.Clock(options.device)
    clock.mark()
    for _ in range(options.repeats):
        torch.matmul(left, right, out=product)
        clock.mark()
    return 2 * size**3 / statistics.median(clock.seconds()) / 1e12


def measure(options):
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    result = torch_step.machine(options.device)
    for name, dtype in TYPES.items():
        sizes = {size: tflops(size, dtype, options) for size in options.sizes}
        result[name] = {"peak_tflops": max(sizes.values()), "tflops_of_size": sizes}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192, 12288, 16384])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    options = parser.parse_args()
    torch_step.report(lambda: measure(options))


if __name__ == "__main__":
    main()
