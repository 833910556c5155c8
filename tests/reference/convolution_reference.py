"""Holds operations of convolutional networks to PyTorch: results and gradients.

Usage: convolution_reference.py CONVOLUTION_CASES. Ends with 77 (skipped) where PyTorch is missing.
"""

import sys

from torch_cases import backward, compare, differentiable, normals

import torch
import torch.nn.functional as F

# images, input channels, output channels, groups, height and width: (in, window, stride, dilation, padding before,
# behind)
CONVOLUTIONS = (
    (9, 3, 32, 1, (32, 3, 1, 1, 1, 1), (32, 3, 1, 1, 1, 1)),
    (4, 32, 64, 1, (16, 3, 1, 1, 1, 1), (16, 3, 1, 1, 1, 1)),
    (8, 1, 20, 1, (28, 5, 1, 1, 0, 0), (28, 5, 1, 1, 0, 0)),
    (5, 20, 50, 1, (12, 5, 1, 1, 0, 0), (12, 5, 1, 1, 0, 0)),
    (3, 64, 48, 1, (14, 1, 2, 1, 0, 0), (13, 1, 2, 1, 0, 0)),
    (70, 33, 12, 1, (1, 1, 1, 1, 0, 0), (1, 1, 1, 1, 0, 0)),
    (4, 32, 32, 32, (15, 3, 2, 1, 1, 1), (15, 3, 2, 1, 1, 1)),
    (3, 12, 24, 4, (9, 3, 1, 1, 1, 1), (11, 3, 1, 1, 1, 1)),
    (2, 7, 13, 1, (11, 3, 2, 1, 0, 1), (14, 5, 3, 2, 2, 1)),
    (2, 3, 64, 1, (40, 7, 2, 1, 3, 3), (36, 7, 2, 1, 3, 3)),
)

# images, channels, height and width as above; PyTorch's pooling pads both ends alike.
POOLS = (
    (4, 32, (16, 2, 2, 1, 0, 0), (16, 2, 2, 1, 0, 0)),
    (3, 5, (9, 3, 2, 1, 1, 1), (8, 3, 2, 1, 1, 1)),
    (2, 130, (7, 7, 1, 1, 0, 0), (6, 6, 1, 1, 0, 0)),
    (2, 3, (10, 3, 1, 1, 0, 0), (11, 2, 3, 1, 1, 1)),
)


def windows(height, width, groups=1):
    return torch.tensor([*height[1:], *width[1:], groups])


def out(axis):
    size, window, stride, dilation, before, behind = axis
    return (size + before + behind - (window - 1) * dilation - 1) // stride + 1


def channels_first(x):
    return x.permute(0, 3, 1, 2)


def channels_last(x):
    return x.permute(0, 2, 3, 1)


def both(height, width, index):
    return (height[index], width[index])


def window_cases(generator, dtype):
    for images, inputs, outputs, groups, height, width in CONVOLUTIONS:
        parameters = [
            differentiable(generator, dtype, images, height[0], width[0], inputs),
            differentiable(generator, dtype, outputs, inputs // groups, height[1], width[1]),
            differentiable(generator, dtype, outputs),
        ]

        def convolution(x, weight, bias):
            padded = F.pad(channels_first(x), (width[4], width[5], height[4], height[5]))
            strides, dilations = both(height, width, 2), both(height, width, 3)
            return channels_last(F.conv2d(padded, weight, bias, strides, 0, dilations, groups))

        dy = normals(generator, dtype, images, out(height), out(width), outputs)
        inputs_of_case, expected = backward(convolution, parameters, dy)
        yield "convolution", [windows(height, width, groups), *inputs_of_case], expected

    for images, channels, height, width in POOLS:
        pools = {
            "max_pool": F.max_pool2d,
            "average_pool": lambda *given: F.avg_pool2d(*given, count_include_pad=False),
        }
        for name, function in pools.items():

            def pool(x):
                sizes = [both(height, width, index) for index in (1, 2, 4)]
                return channels_last(function(channels_first(x), *sizes))

            x = differentiable(generator, dtype, images, height[0], width[0], channels)
            dy = normals(generator, dtype, images, out(height), out(width), channels)
            inputs_of_case, expected = backward(pool, [x], dy)
            yield name, [windows(height, width), *inputs_of_case], expected


def norm_cases(generator, dtype):
    def parameters(shape):
        x = (normals(generator, dtype, *shape) * 2 + 3).detach().requires_grad_()
        return [x, differentiable(generator, dtype, shape[-1]), differentiable(generator, dtype, shape[-1])]

    for shape in ((16, 16, 16, 32), (5, 7, 9, 3), (2, 4, 4, 700)):
        norm = lambda x, gain, bias: channels_last(F.batch_norm(channels_first(x), None, None, gain, bias, True))
        yield "batch_norm", *backward(norm, parameters(shape), normals(generator, dtype, *shape))
        relu = lambda *given: F.relu(norm(*given))
        yield "batch_norm_relu", *backward(relu, parameters(shape), normals(generator, dtype, *shape))
    for shape, groups in (((4, 16, 16, 32), 8), ((3, 5, 7, 6), 6), ((2, 4, 4, 700), 1)):
        norm = lambda x, gain, bias: channels_last(F.group_norm(channels_first(x), groups, gain, bias))
        inputs, expected = backward(norm, parameters(shape), normals(generator, dtype, *shape))
        yield "group_norm", [torch.tensor([groups]), *inputs], expected


sys.exit(compare(sys.argv[1], [window_cases, norm_cases], described=1))
