"""The rig: with a device that sleeps, steps take at least the simulator's time; over emulated links at least as long as the
link carries their messages. The bits stay."""

import json
import re

import harness
from harness import DONE

NETWORK = harness.config_text(
    ["dense 8 relu", "dense 8 relu", "dense 8 relu", "dense 4"], data={"train": "classes/train.h5"},
    batch={"global": 16, "micro": 2}, numerics={"lanes": 2}, train={"steps": 3}, parallel={"bucket": 0.0001})


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
                with harness.rig(TIMES=f"3:{inputs}:4"):
                    self.train(self.config, grid, run, f"--parallel.schedule={schedule}")
                seconds = self.simulated(schedule, f"--stages={grid[1]}", f"--microbatches={8 // grid[0]}",
                                         "--forward=3", f"--backward-input={inputs}", "--backward-weight=4")
                steps = self.seconds_of_steps(run)
                self.assertEqual(len(steps), 3)
                self.assertGreaterEqual(min(steps), seconds)

    def seconds_of_steps(self, run):
        lines = (self.directory / run / "metrics.jsonl").read_text().splitlines()
        return [record["step_seconds"] for record in map(json.loads, lines) if record["kind"] == "train"]

    def test_links_hold_messages_back_and_change_no_bits(self):
        hidden = 700
        # Messages hold parameters in whole blocks of 1024 elements.
        parameters = sum(-(-count // 1024) * 1024 for count in (10 * hidden, hidden, 4 * hidden, 4))
        wide = self.write_config("wide.ini", harness.config_text(
            [f"dense {hidden} relu", "dense 4"], batch={"global": 16, "micro": 2}, numerics={"lanes": 4},
            train={"steps": 3}, run={"sniff": "off"}))
        rate, delay = 6.4e6 / 8, 0.01  # B/s, s
        local = ["--parallel.sync=local", "--parallel.islands=4", "--local.steps=3"]
        for ranks, exchanges, settings in (2, 3, []), (4, 3, []), (4, 1, local), (2, 1, local):
            plain, linked = (f"{name}-{ranks}-{exchanges}" for name in ("plain", "linked"))
            with self.subTest(ranks=ranks, settings=settings):
                self.train(wide, (1, 1), plain, *settings)
                with harness.rig(LINK="6.4:10"):
                    finished = self.train(wide, (ranks, 1), linked, *settings)
                self.assert_same_run(plain, linked)
                # A rank sends and receives all slices but its own: in each step of gradients, then of weights; in a round of
                # the differences of each island, then of their sums.
                islands = 4 // ranks if settings else 1
                bytes_of_rank = (islands + 1) * (ranks - 1) / ranks * 4 * parameters
                # The weights of the last step arrive after it.
                whole = max(1, exchanges - 1)
                self.assertGreaterEqual(sum(self.seconds_of_steps(linked)), whole * (bytes_of_rank / rate + 3 * delay))
                sent = sum(map(int, re.findall(r"rank \d+ sent (\d+) bytes over an emulated link", finished.text)))
                self.assertAlmostEqual(sent / (exchanges * ranks * bytes_of_rank), 1, delta=0.01)


if __name__ == "__main__":
    harness.main()
