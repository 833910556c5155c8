"""Convolutional networks as strata's layer lines and as PyTorch modules."""

from torch import nn


class Residual(nn.Module):
    def __init__(self, body, shortcut=None, relu=True):
        super().__init__()
        self.body = nn.Sequential(*body)
        self.shortcut = nn.Sequential(*shortcut) if shortcut else nn.Identity()
        self.relu = nn.ReLU() if relu else nn.Identity()

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


class Network:
    def __init__(self, shape, classes, shards, lines, make, whole_batches):
        self.shape, self.classes, self.shards = shape, classes, shards
        self.lines, self.make = lines, make
        self.whole_batches = whole_batches

    def microbatches(self, rows):
        """(microbatch, stages) to compute with."""
        if self.whole_batches:
            return ((rows, 1), (rows, 3))
        return ((rows, 1), (rows // 4, 1), (rows // 4, 3))


CUT = Network(
    (3, 11, 9), 7, (1, 2),
    ["conv 6 3 relu padding=same parallel=column", "max_pool 2",
     "conv 8 3x2 stride=2 padding=1 parallel=row", "tanh", "avg_pool 3 stride=2 padding=1",
     "conv 4 1 groups=4", "conv 10 2 padding=1 parallel=column bias=off", "group_norm 2", "flatten",
     "dense 16 relu parallel=row", "dense 7"],
    lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, (3, 2), stride=2, padding=1), nn.Tanh(),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        nn.Conv2d(8, 4, 1, groups=4), nn.Conv2d(4, 10, 2, padding=1, bias=False), nn.GroupNorm(2, 10), nn.Flatten(),
        nn.Linear(90, 16), nn.ReLU(), nn.Linear(16, 7)),
    whole_batches=False)

RESIDUAL = Network(
    (3, 9, 8), 5, (1,),
    ["conv 8 3 padding=1 bias=off", "batch_norm relu", "max_pool 3 stride=2 padding=1",
     "residual", "conv 12 3 stride=2 padding=1 bias=off", "batch_norm relu",
     "conv 12 3 padding=1 bias=off", "batch_norm",
     "shortcut", "conv 12 1 stride=2 bias=off", "batch_norm", "end relu",
     "residual", "conv 12 3 padding=same bias=off", "batch_norm relu", "conv 12 1", "end",
     "group_norm 4", "zero_pad 1", "global_avg_pool", "dense 5"],
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        Residual([nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
                  nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)],
                 [nn.Conv2d(8, 12, 1, stride=2, bias=False), nn.BatchNorm2d(12)]),
        Residual([nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
                  nn.Conv2d(12, 12, 1)], relu=False),
        nn.GroupNorm(4, 12), nn.ZeroPad2d(1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)),
    whole_batches=True)
