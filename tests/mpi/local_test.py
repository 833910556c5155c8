"""Islands that average their weights now and then (parallel.sync = local)."""

import numpy as np

import harness

NETWORK = harness.config_text(
    ["flatten", "dense 40 relu", "layer_norm", "dropout 0.1", "dense 24", "gelu", "dense 5"],
    batch={"global": 48, "micro": 3},
    parallel={"sync": "local", "islands": 4},
    local={"steps": 6},
    optimizer={"kind": "adam", "learning_rate": 0.01, "clip_norm": 0.5},
    schedule={"kind": "cosine", "warmup_steps": 3, "decay_steps": 24},
    train={"steps": 24, "evaluate_every": 12}, checkpoint={"every": 12})

GRIDS = [(1, 1), (2, 1), (4, 1), (1, 3), (2, 2), (4, 2)]

# What is averaged, when, and how it is sent.
KINDS = {
    "diloco": [],
    "plain": ["--local.outer_momentum=0", "--local.outer_rate=1"],
    "rounded": ["--local.exchange=int4"],
    "streaming": ["--local.fragments=3", "--local.delay=1", "--local.exchange=int6",
                  "--numerics.lanes=8"],
    "float64": ["--numerics.dtype=float64", "--local.fragments=2", "--local.exchange=bfloat16"],
    "bfloat16": ["--numerics.dtype=bfloat16", "--local.delay=2", "--local.mix=0.25"],
}


class Local(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (3, 4), 5, train=200, test=50)

    def test_grids(self):
        for kind, settings in KINDS.items():
            with self.subTest(kind):
                grids = GRIDS + ([(8, 1)] if kind == "streaming" else [])
                self.same_on([(grid, []) for grid in grids], *settings, name=kind)


if __name__ == "__main__":
    harness.main()
