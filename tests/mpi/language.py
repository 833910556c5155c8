"""What the tests of language models share: a text, a config, and runs that must be the same."""

import random

import harness

# 26 different characters, the blank among them: a vocabulary that 4 shards do not divide.
WORDS = ("amber brook cedar dune ember fjord grove heath islet jetty knoll ledge marsh north ocean "
         "plain quarry ridge slope thorn upland vale wharf exile yarrow").split()


def config(layers=(), **model):
    """A config of these layers or settings of the model, on the data set `text`."""
    return harness.config_text(
        layers, model={"context": 16, **model}, data="text", batch={"global": 16, "micro": 2},
        numerics={"lanes": 4, "shards": 4},
        optimizer={"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.1,
                   "decay": "matrices", "clip_norm": 1.3},
        schedule={"kind": "cosine", "warmup_steps": 1, "decay_steps": 10},
        train={"steps": 3, "evaluate_every": 2, "evaluate_batches": 1})


# Heads that share keys and values, the head's matrix its own, and samples from random places.
LLAMA = ["--model.preset=llama", "--model.heads=8", "--model.kv_heads=4", "--data.sampling=windows"]


def text(words, seed=1):
    """Words, each of them followed by one of three."""
    chance = random.Random(seed)
    followers = {word: chance.sample(WORDS, 3) for word in WORDS}
    chosen = [WORDS[0]]
    while len(chosen) < words:
        chosen.append(chance.choice(followers[chosen[-1]]))
    return " ".join([*WORDS, *chosen]) + " "


class LanguageTest(harness.StrataTest):
    """A test with a data set of characters in `text` and the config above in `lm.ini`."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        test.import_text("text", text(3200))
        cls.config = test.write_config(
            "lm.ini", config(preset="gpt", blocks=2, width=32, heads=4, dropout=0.1))

    def import_text(self, name, content, *arguments, tokenizer="chars"):
        """Imports a text as the data set `name`."""
        (self.directory / f"{name}.txt").write_text(content)
        self.import_data("--format=text", f"--tokenizer={tokenizer}", f"--files={name}.txt",
                         f"--output={name}", *arguments)
