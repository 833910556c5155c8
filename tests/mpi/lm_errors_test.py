"""Language models and tensor grids that cannot be: each with its exit code and one report."""

import harness
import language
from harness import CHECKPOINT, DATA, USAGE

CLASSES = ["--data.train=classes/train.h5", "--data.test=classes/test.h5"]
BYTES = ["--data.train=bytes/train.h5", "--data.test=bytes/test.h5"]

NO_PRESET = """
[model]
layer = embedding 32 positions=16
layer = attention 4
layer = mlp 64 gelu
layer = layer_norm
layer = head
context = 16

[data]
train = text/train.h5

[batch]
global = 8

[numerics]
shards = 2

[train]
steps = 1
"""

SPLIT_LAYERS = """
[model]
layer = dense 12 relu parallel=column
layer = dense 4 parallel=row

[data]
train = classes/train.h5

[batch]
global = 8

[train]
steps = 1
"""


class Errors(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        test.import_classes("classes", (10,), 4, train=40, test=20)
        test.import_text("bytes", language.text(1000), tokenizer="bytes")
        # As many characters, others.
        test.import_text("swapped", language.text(500).replace("y", "7"))
        cls.layers = test.write_config("layers.ini", NO_PRESET)
        cls.split = test.write_config("split.ini", SPLIT_LAYERS)
        cls.runs = 0

    def refused(self, code, *words, settings=(), grid=(1, 1, 1), config=None, run=None):
        """Trains and expects a refusal."""
        type(self).runs += 1
        arguments = ["train", config or self.config, f"--run.dir={run or f'run-{self.runs}'}",
                     *harness.grid_settings(grid), *settings]
        ranks = harness.ranks_of(grid)
        finished = self.alone(*arguments) if ranks == 1 else self.launch(ranks, *arguments)
        with self.subTest(settings=settings, grid=grid):
            self.assert_refused(finished, code, *words)

    def test_models(self):
        self.refused(USAGE, "model.preset is gpt and there are 2 model.layer lines", "keep one",
                     settings=["--model.layer=embedding 32", "--model.layer=head"], grid=(1, 1, 2))
        bare = self.write_config("bare.ini", "[model]\npreset = gpt\n[data]\n"
                                 "train = text/train.h5\n[train]\nsteps = 1\n")
        given = []
        for key, value in [("blocks", 2), ("width", 32), ("heads", 4), ("context", 16)]:
            self.refused(USAGE, f"model.preset is gpt, which leaves model.{key} open", "set it",
                         config=bare, settings=list(given))
            given.append(f"--model.{key}={value}")
        self.train(bare, (1, 1, 1), "bare", *given, "--train.steps=1")
        for setting, words in [
                ("heads=5", ["width 32", "5 heads", "change the width"]),
                ("kv_heads=3", ["4 heads do not share 3 key-value heads"]),
                ("preset=gpt3", ['model.preset = "gpt3"', "gpt2-124m", "llama"]),
                ("mlp=silu", ['model.mlp = "silu"', "swiglu"]),
                ("positions=sines", ['model.positions = "sines"', "rotary", "learned"]),
                ("context=sixteen", ['model.context = "sixteen"', "whole number"])]:
            self.refused(USAGE, *words, settings=[f"--model.{setting}"])
        self.refused(USAGE, "16 learned positions", "model.context is 17", config=self.layers,
                     settings=["--model.context=17"])
        self.refused(USAGE, 'model.layer "head"', "its input is token ids", "embedding",
                     config=self.layers, settings=["--model.layer=head"])

    def test_shards(self):
        self.refused(USAGE, "attention", "4 heads are not divisible by numerics.shards = 3",
                     settings=["--numerics.shards=3"])
        self.refused(USAGE, "2 key-value heads are not divisible by numerics.shards = 4",
                     settings=["--model.kv_heads=2"], grid=(1, 1, 2))
        self.refused(USAGE, "130 hidden units are not divisible by numerics.shards = 4",
                     settings=["--model.hidden=130"])
        self.refused(USAGE, "numerics.shards is 4, which parallel.tensor = 3 does not divide",
                     "divides 4", grid=(1, 1, 3))
        self.refused(USAGE, "parallel.sequence is on", "34 tokens", "batch.micro = 2",
                     "model.context = 17", "numerics.shards = 4", grid=(1, 1, 2),
                     settings=["--parallel.sequence=on", "--model.context=17"])
        self.refused(USAGE, "dense 12", "12 outputs are not divisible by numerics.shards = 5",
                     config=self.split, settings=["--numerics.shards=5"])
        for layers, words in [
                (["dense 12 parallel=column", "dense 4"], ["parallel=column", "give parallel=row"]),
                (["dense 12", "dense 4 parallel=row"], ["its input is whole", "parallel=column"]),
                (["dense 12 parallel=column", "layer_norm", "dense 4"], ["split by feature"])]:
            self.refused(USAGE, *words, config=self.split, grid=(1, 1, 2),
                         settings=[f"--model.layer={layer}" for layer in layers])

    def test_grids(self):
        self.refused(USAGE, "parallel.pipeline is 8, but the model has 7 layers",
                     "at most 7 stages", grid=(1, 8, 1))
        self.refused(USAGE, "the job has 2 ranks", "1 data x 2 pipeline x 2 tensor needs 4",
                     "launch 4 ranks", grid=(1, 2), settings=["--parallel.tensor=2"])
        fast = ["--numerics.mode=fast"]
        self.refused(USAGE, "numerics.lanes is 4 and parallel.data is 1", "numerics.mode = fast",
                     settings=fast, grid=(1, 1, 2))
        self.refused(USAGE, "numerics.shards is 4 and parallel.tensor is 2", "invariant",
                     settings=[*fast, "--numerics.lanes=0"], grid=(1, 1, 2))
        self.refused(USAGE, 'numerics.mode = "quick"', "invariant, fast",
                     settings=["--numerics.mode=quick"])
        for dtype in ("bf16", "bfloat", "float16"):
            self.refused(USAGE, f'numerics.dtype = "{dtype}"', "float32, bfloat16, float64",
                         settings=[f"--numerics.dtype={dtype}"])
        self.refused(USAGE, 'train.recompute = "yes"', "none, selective, full",
                     settings=["--train.recompute=yes"])
        self.refused(USAGE, 'parallel.sequence = "true"', "off, on",
                     settings=["--parallel.sequence=true"])

    def test_data(self):
        self.refused(USAGE, "data set is one of tokens", "model.context is 0", config=self.layers,
                     settings=["--model.context=0"], grid=(1, 1, 2))
        self.refused(DATA, "text/test.h5 holds", "a context of 5,000 needs 5,001", "more text",
                     settings=["--model.context=5000"])
        self.refused(DATA, "text/train.h5 holds", "a context of 50,000 needs 50,001",
                     settings=["--model.context=50000"], grid=(1, 1, 2))
        self.refused(USAGE, "vocabulary of 20 is smaller than that of the data set, 26",
                     settings=["--model.vocabulary=20"])
        self.refused(USAGE, "embedding", "its input is no token ids", "--format=text",
                     settings=CLASSES, grid=(1, 1, 2))
        self.refused(USAGE, "dense 12", "input is token ids", "embedding", config=self.split,
                     settings=["--data.train=text/train.h5", "--model.context=16"])
        self.refused(USAGE, '"layer_norm"', "26 ids", "layer = head", config=self.layers,
                     settings=["--model.layer=embedding 20", "--model.layer=layer_norm"])
        self.refused(USAGE, "model.loss is mean_squared_error", "has tokens as targets",
                     settings=["--model.loss=mean_squared_error"])
        self.refused(DATA, "classes/test.h5", "4 classes",
                     settings=CLASSES[1:])

    def test_splits_of_different_tokenizers(self):
        self.refused(DATA, "text/test.h5 and bytes/train.h5", "different tokenizers",
                     "import both splits together", settings=BYTES[:1], grid=(1, 1, 2))
        self.refused(DATA, "bytes/test.h5", "256 token ids", "26 token ids",
                     settings=BYTES[1:])
        self.refused(DATA, "swapped/test.h5 and text/train.h5", "different tokenizers",
                     settings=["--data.test=swapped/test.h5"])

    def test_checkpoints(self):
        self.train(self.config, (1, 1, 2), "done", "--train.steps=1")
        again = ["--run.resume=must"]
        self.refused(CHECKPOINT, "checkpoint of another model",
                     "embedding.tokens.weight (26 x 32 float32)",
                     "embedding.tokens.weight (256 x 32 float32)", settings=[*again, *BYTES],
                     run="done", grid=(1, 1, 2))
        for setting, words in [
                ("numerics.dtype=bfloat16", ["numerics.dtype", "float32", "bfloat16"]),
                ("data.sampling=windows", ["data.sampling", "blocks", "windows"])]:
            self.refused(USAGE, "holds another run", *words, settings=[*again, f"--{setting}"],
                         run="done")
        self.refused(CHECKPOINT, "another model", "positions",
                     settings=[*again, "--model.context=8"], run="done")
        self.train(self.config, (1, 1, 1), "rotary", *language.LLAMA, "--train.steps=1")
        self.refused(USAGE, "holds another run", "model.context is 16, here it is 8", run="rotary",
                     settings=[*again, *language.LLAMA, "--model.context=8"])
        # Tensors of the same shapes, which other heads would read as something else.
        self.refused(CHECKPOINT, 'its layer 1 is "attention 4', '"attention 8',
                     settings=[*again, "--model.heads=8"], run="done")
        for code, words, settings in [
                (CHECKPOINT, ["another model", "attention 8"], ["--model.heads=8"]),
                (DATA, ["done/checkpoints/step-00000001", "swapped/train.h5", "another tokenizer"],
                 ["--data.train=swapped/train.h5", "--data.test=swapped/test.h5"])]:
            refused = self.alone("evaluate", self.config, "--run.dir=done", *settings)
            self.assert_refused(refused, code, *words)


if __name__ == "__main__":
    harness.main()
