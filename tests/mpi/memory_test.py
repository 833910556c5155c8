"""What training takes of a rank's memory at its peak is the planned memory, and at most a little more."""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import unittest

import harness


class Memory(harness.StrataTest):
    def config(self, name, data, layers=(), **sections):
        sections = {"optimizer": {"kind": "adam"}, "train": {"steps": 3, "repeat_every": 2}, **sections}
        return self.write_config(f"{name}.ini", harness.config_text(layers, data=data, **sections))

    def measure(self, config, grid, more=24e6):
        """Holds what training adds to a rank to its plan within 5 % and `more` bytes that do not grow with it: heaps
        of threads, buffers of MPI."""
        run = f"{config.stem}-{'x'.join(map(str, grid))}"
        self.assertIn("peak memory of a rank: ", self.train(config, grid, run).text)
        facts = {}
        for line in (self.directory / run / "metrics.jsonl").read_text().splitlines():
            facts |= json.loads(line)
        planned, peak, mapped, before = (facts[f"{key}_bytes"] for key in ("planned", "peak", "mapped", "base"))
        used = peak - mapped - before
        print(f"| {run} | " + " | ".join(f"{size / 2**20:.1f}" for size in (planned, used, before, mapped, peak))
              + f" | {used / planned - 1:+.1%} |", flush=True)
        self.assertLessEqual(used, 1.05 * planned + more)
        self.assertGreaterEqual(used, 0.95 * planned)

    @unittest.skipUnless("STRATA_TEST_LONG" in os.environ, "runs of 0.3 to 1.8 GiB a rank; STRATA_TEST_LONG=1 runs them")
    def test_planned_and_used(self):
        """Six kinds of run, on one rank and on four, as docs/planning.md has them."""
        self.import_classes("vectors", (256,), 10, train=600, test=64)
        self.import_classes("photos", (3, 32, 32), 10, train=512, test=16)
        self.import_letters()
        letters = {"data": {"train": "text/train.h5"}, "numerics": {"lanes": 4, "shards": 2},
                   "batch": {"global": 4, "micro": 1}, "train": {"steps": 2}}
        size = {"blocks": 6, "width": 1024, "heads": 8, "context": 32}
        wide = {"data": "vectors", "layers": ["dense 4096 relu"] * 7 + ["dense 10"], "batch": {"global": 64},
                "train": {"steps": 2}}
        kinds = [
            ("mlp", (2, 2), wide | {"numerics": {"lanes": 2}}),
            ("cnn", (4, 1), {"data": {"train": "photos/train.h5"}, "model": {"preset": "resnet20"}, "optimizer": {},
                             "batch": {"global": 512, "micro": 128}, "numerics": {"lanes": 4}, "train": {"steps": 1}}),
            ("gpt", (2, 1, 2), letters | {"model": {"preset": "gpt", **size}}),
            ("llama", (1, 2, 2), letters | {"model": {"preset": "llama", **size, "kv_heads": 2}}),
            ("adapters", (4, 1, 1), letters | {"model": {"preset": "gpt", **size, "blocks": 8}, "lora": {"rank": 8}}),
            ("islands", (4, 1), wide | {"layers": ["dense 2048 relu"] * 3 + ["dense 10"], "numerics": {"lanes": 4},
                                        "parallel": {"sync": "local", "islands": 4}, "local": {"steps": 2}})]
        for name, four, settings in kinds:
            config = self.config(name, **settings)
            for grid in [tuple(1 for _ in four), four]:
                with self.subTest(run=name, grid=grid):
                    self.measure(config, grid, more=0)

    def import_letters(self):
        if (self.directory / "text").exists():
            return
        draw = random.Random(5)
        (self.directory / "text.txt").write_text("".join(draw.choices("abcdefgh \n", k=20000)))
        self.import_data("--format=text", "--tokenizer=chars", "--files=text.txt", "--split=0.9,0.1", "--output=text")

    def test_the_usual_network(self):
        self.import_classes("images", (28, 28), 10, train=500, test=100)
        config = self.config("mlp", "images", ["flatten", "dense 128 relu", "dropout 0.2", "dense 10"],
                             batch={"global": 128}, numerics={"lanes": 4})
        for grid in [(1, 1), (2, 2)]:
            self.measure(config, grid)

    def test_a_wide_network(self):
        self.import_classes("wide", (256,), 10, train=600, test=64)
        config = self.config("wide", "wide", ["dense 2048 relu"] * 5 + ["dense 10"],
                             batch={"global": 128}, numerics={"lanes": 2})
        for grid in [(1, 1), (2, 1), (1, 2)]:
            self.measure(config, grid)

    def test_islands(self):
        """Several islands on a rank; fragments in turns, with rounding errors that are kept."""
        self.import_classes("islands", (256,), 10, train=600, test=64)
        local = {"batch": {"global": 64}, "numerics": {"lanes": 4}, "train": {"steps": 6},
                 "parallel": {"sync": "local", "islands": 4}}
        streaming = {"steps": 6, "fragments": 3, "delay": 1, "exchange": "int4"}
        for name, rounds in {"islands": {"steps": 2}, "streaming": streaming}.items():
            config = self.config(name, "islands", ["dense 1024 relu"] * 4 + ["dense 10"], local=rounds,
                                 checkpoint={"every": rounds["steps"]}, **local)
            for grid in [(1, 1), (2, 1)]:
                self.measure(config, grid)

    def test_too_little_is_said(self):
        """Under ulimit -v each command ends well, or with one line and exit code 5."""
        self.import_classes("little", (28, 28), 10, train=500, test=100)
        config = self.config("little", "little", ["flatten", "dense 128 relu", "dense 10"], batch={"global": 100},
                             checkpoint={"every": 1})
        self.train(config, (1, 1), "whole")
        commands = {"train": ["train", config, "--run.dir=little-run"], "evaluate": ["evaluate", "whole"],
                    "report": ["report", "whole", "--output=page.html"]}
        said = 0
        # Below, libraries end the process before main.
        least = next(limit for limit in range(40, 250) if subprocess.run(
            ["bash", "-c", f"ulimit -c 0; ulimit -v {1024 * limit}; exec {harness.STRATA} --version"],
            capture_output=True).returncode == 0)
        for name, command in commands.items():
            for limit in range(least + 1, least + 160, 10):
                with self.subTest(command=name, limit=limit):
                    shutil.rmtree(self.directory / "little-run", ignore_errors=True)
                    words = shlex.join(map(str, [harness.STRATA, *command]))
                    finished = self.finish(harness.Job(
                        ["bash", "-c", f"ulimit -c 0; ulimit -v {1024 * limit}; exec {words}"], self.directory), 60, None)
                    lines = re.findall("^strata: .*$", finished.text, re.MULTILINE)
                    if finished.code != harness.DONE:
                        said += 1
                        self.assertEqual((finished.code, len(lines)), (harness.PEER, 1), finished.text)
                        self.assertRegex(lines[0], "out of memory|cannot start a thread")
                        self.assertRegex(lines[0], r"ulimit -v")
        self.assertGreater(said, 5)

    def test_many_activations(self):
        self.import_classes("deep", (64,), 4, train=40000, test=64)
        config = self.config("deep", "deep", ["dense 128", "gelu"] * 6 + ["dense 4"],
                             batch={"global": 16384, "micro": 4096}, numerics={"lanes": 2})
        for grid in [(1, 1), (1, 2)]:
            self.measure(config, grid)

    def test_batch_statistics_of_all_lanes(self):
        self.import_classes("pictures", (3, 32, 32), 10, train=128, test=16)
        config = self.config("resnet", {"train": "pictures/train.h5"}, optimizer={},
                             model={"preset": "resnet20", "sync_batch_norm": "on"},
                             batch={"global": 64, "micro": 16}, numerics={"lanes": 2},
                             train={"steps": 2})
        for grid in [(1, 1), (2, 1), (1, 2)]:
            self.measure(config, grid)

    def test_a_language_model(self):
        self.import_letters()
        for recompute, schedule, pieces, grid in [
                ("none", "1f1b", 1, (1, 1, 1)), ("none", "zb-v", 1, (1, 2, 1)), ("selective", "1f1b", 1, (1, 2, 1)),
                ("full", "1f1b", 1, (1, 1, 2)), ("none", "1f1b", 8, (1, 1, 2))]:
            config = self.config(
                f"gpt-{recompute}-{schedule}-{pieces}", {"train": "text/train.h5"}, optimizer={"kind": "adamw"},
                model={"preset": "gpt", "blocks": 4, "width": 384, "heads": 6, "context": 256},
                batch={"global": 16, "micro": 8}, numerics={"lanes": 2, "shards": 2, "loss_pieces": pieces},
                train={"steps": 1, "recompute": recompute}, parallel={"schedule": schedule})
            long = "STRATA_TEST_LONG" in os.environ and schedule == "1f1b"
            for tried in [(1, 1, 1), (1, 2, 1), (1, 1, 2)] if long else [grid]:
                self.measure(config, tried)


if __name__ == "__main__":
    harness.main()
