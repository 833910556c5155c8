#!/usr/bin/env python3
"""Images a second of ResNet-50 in PyTorch on one GPU; prints one line of JSON.

    bench/peers/resnet_torch.py
    bench/peers/resnet_torch.py --precision tf32 --batch 256

The network that strata's preset resnet50 trains: He et al. 2016 with the strides in the 3 x 3
convolutions. SGD with momentum 0.9; images are random, channels last, and on the device before the
first step. Precisions: `autocast`: float32 weights, convolutions and products in bfloat16; `tf32`;
`float32`.
"""
import argparse

import torch
from torch import nn
from torch.nn import functional

import torch_step


def convolution(inputs, outputs, side, stride=1):
    """A convolution without bias and its batch norm."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False),
                         nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut; 4 x width channels come out."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.narrow = convolution(inputs, width, 1)
        self.middle = convolution(width, width, 3, stride)
        self.wide = convolution(width, 4 * width, 1)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x):
        y = functional.relu(self.middle(functional.relu(self.narrow(x))))
        return functional.relu(self.wide(y) + self.shortcut(x))


class ResNet50(nn.Module):
    """From images (batch, 3, side, side) and classes (batch) to the mean cross-entropy."""

    def __init__(self, classes):
        super().__init__()
        layers = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        channels = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(blocks):
                layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
                channels = 4 * width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                    nn.Linear(channels, classes))

    def forward(self, images, classes):
        return functional.cross_entropy(self.layers(images).float(), classes)


def measure(options):
    torch_step.prepare(options)
    model = ResNet50(options.classes).to(options.device, memory_format=torch.channels_last)

    def sgd(weights):
        return torch.optim.SGD(weights, lr=0.01, momentum=0.9, weight_decay=0.0001)

    update = torch_step.Update(model, options, sgd, clip_norm=0)
    shape = (options.batch, 3, options.side, options.side)
    batches = [(torch.rand(shape, device=options.device).to(memory_format=torch.channels_last),
                torch.randint(options.classes, (options.batch,), device=options.device))
               for _ in range(4)]
    result = torch_step.train(model, update, batches, options)
    return {"model": "resnet50", "side": options.side, **result,
            "images_per_second": result["samples_per_second"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_step.add_options(parser, ["autocast", "tf32", "float32"], batch=128)
    parser.add_argument("--side", type=int, default=224, help="height and width, in pixels")
    parser.add_argument("--classes", type=int, default=1000)
    options = parser.parse_args()
    torch_step.report(lambda: measure(options))


if __name__ == "__main__":
    main()
