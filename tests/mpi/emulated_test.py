"""run.device = emulated: steps take at least the simulator's time, and nothing of such a run is taken for training.
Emulated links: steps take at least as long as the link carries their messages, and have the same bits."""

import json
import re

import harness
from harness import CHECKPOINT, DONE, USAGE

NETWORK = harness.config_text(
    ["dense 8 relu", "dense 8 relu", "dense 8 relu", "dense 4"], data={"train": "classes/train.h5"},
    batch={"global": 16, "micro": 2}, numerics={"lanes": 2}, train={"steps": 3}, parallel={"bucket": 0.0001})

EMULATED = ["--run.device=emulated", "--emulated.forward=3", "--emulated.backward_weight=4"]


class Emulated(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=64, test=16)

    def simulated(self, *arguments):
        finished = self.alone("schedule", "simulate", *arguments, expect=DONE)
        return float(re.search(r"^step ([\d.]+) ms", finished.text, re.MULTILINE)[1]) / 1e3

    def test_steps_take_at_least_the_simulated_time(self):
        for schedule, grid, inputs in (("1f1b", (1, 4), "2,2,2,5"), ("zb-h1", (2, 2), "2"), ("gpipe", (1, 1), "2")):
            with self.subTest(schedule=schedule, grid=grid):
                run = f"{schedule}-run"
                finished = self.train(self.config, grid, run, *EMULATED, f"--emulated.backward_input={inputs}",
                                      f"--parallel.schedule={schedule}")
                self.assertIn("run.device is emulated: no layer computes", finished.text)
                seconds = self.simulated(schedule, f"--stages={grid[1]}", f"--microbatches={8 // grid[0]}",
                                         "--forward=3", f"--backward-input={inputs}", "--backward-weight=4")
                self.assertIn(f"emulated times, {1e3 * seconds:g} ms a step", finished.text)
                lines = (self.directory / run / "metrics.jsonl").read_text().splitlines()
                steps = [json.loads(line)["step_seconds"] for line in lines]
                self.assertEqual(len(steps), 3)
                self.assertGreaterEqual(min(steps), seconds)
                self.assertEqual(harness.checkpoints(self.directory / run), [])

    def seconds_of_steps(self, run):
        lines = (self.directory / run / "metrics.jsonl").read_text().splitlines()
        return [record["step_seconds"] for record in map(json.loads, lines) if record["kind"] == "train"]

    def test_links_hold_messages_back_and_change_no_bits(self):
        hidden = 700
        # Messages hold parameters in whole blocks of 1024 elements.
        parameters = sum(-(-count // 1024) * 1024 for count in (10 * hidden, hidden, 4 * hidden, 4))
        wide = self.write_config("wide.ini", harness.config_text(
            [f"dense {hidden} relu", "dense 4"], batch={"global": 16, "micro": 2}, numerics={"lanes": 4},
            train={"steps": 3}))
        rate, delay = 6.4e6 / 8, 0.01  # B/s, s
        local = ["--parallel.sync=local", "--parallel.islands=4", "--local.steps=3"]
        for ranks, exchanges, settings in (2, 3, []), (4, 3, []), (4, 1, local), (2, 1, local):
            plain, linked = (f"{name}-{ranks}-{exchanges}" for name in ("plain", "linked"))
            with self.subTest(ranks=ranks, settings=settings):
                self.train(wide, (1, 1), plain, *settings)
                finished = self.train(wide, (ranks, 1), linked, "--emulated.link_rate=6.4", "--emulated.link_delay=10",
                                      *settings)
                self.assertIn("emulate slow links", finished.text)
                self.assert_same_run(plain, linked)
                # A rank sends and receives all slices but its own: in each step of gradients, then of weights; in a round of
                # the differences of each island, then of their sums.
                islands = 4 // ranks if settings else 1
                bytes_of_rank = (islands + 1) * (ranks - 1) / ranks * 4 * parameters
                # The weights of the last step arrive after it.
                whole = max(1, exchanges - 1)
                self.assertGreaterEqual(sum(self.seconds_of_steps(linked)), whole * (bytes_of_rank / rate + 3 * delay))
                sent = float(re.search(r"ranks sent ([\d.]+) KiB over emulated links", finished.text)[1]) * 1024
                self.assertAlmostEqual(sent / (exchanges * ranks * bytes_of_rank), 1, delta=0.01)

    def test_nothing_is_taken_for_training(self):
        self.train(self.config, (1, 1), "real")
        kept = harness.tensors(harness.checkpoints(self.directory / "real")[-1])
        self.assert_refused(self.alone("train", self.config, "--run.dir=real", *EMULATED), USAGE,
                            "real holds a run already")
        self.assert_refused(self.alone("train", self.config, "--run.dir=real", "--run.resume=auto", "--train.steps=9",
                                       *EMULATED), USAGE, "run.resume is set, but run.device is emulated")
        self.assert_refused(self.alone("evaluate", "real", "--run.device=emulated"), USAGE,
                            "run.device is emulated, which only trains")
        self.assertEqual(harness.differing_tensors(
            kept, harness.tensors(harness.checkpoints(self.directory / "real")[-1])), [])
        self.train(self.config, (1, 2), "emulated", *EMULATED)
        self.assert_refused(self.alone("train", self.config, "--run.dir=emulated", "--run.resume=must"), CHECKPOINT,
                            "there is no checkpoint in emulated")
        self.train(self.config, (1, 2), "emulated", "--run.resume=auto")
        self.assertEqual([record["step"] for record in self.records("emulated", "train")], ["1", "2", "3"])
        self.assert_refused(self.alone("job", self.config, "--nodes=1", "--time=10", "--run.device=emulated"), USAGE,
                            "run.device is emulated, whose runs have no checkpoints to resume from")


if __name__ == "__main__":
    harness.main()
