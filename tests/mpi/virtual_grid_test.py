"""Runs that leave lanes and shards to strata: the grids on which they go on, and others by consent."""

import json
import re

import harness
from harness import DONE, USAGE

# What could depend on the virtual grid: batch statistics, dropout, the order of samples, optimizer states.
NETWORK = harness.config_text(
    ["dense 32 parallel=column", "batch_norm relu", "dropout 0.3", "dense 16 parallel=row relu", "dense 4"],
    batch={"global": 48}, optimizer={"kind": "adam", "learning_rate": 0.005, "clip_norm": 1},
    train={"steps": 15, "evaluate_every": 3})


class VirtualGrid(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=100, test=30)

    def go_on(self, name, ranks, steps, *settings, expect=DONE):
        """Continues the run of the config `name`, or begins it; without further settings on as many replicas as ranks."""
        self.write_config(f"{name}.ini", NETWORK)
        return self.launch(ranks, "train", f"{name}.ini", "--run.resume=auto", f"--train.steps={steps}", *settings,
                           expect=expect)

    def test_a_run_begun_on_one_rank_goes_on_on_several(self):
        self.go_on("whole", 1, 15)
        first = self.go_on("parts", 1, 3)
        self.assertIn("can go on with 1, 2 or 4 replicas and 1 tensor rank, at any pipeline depth", first.text)
        for ranks, steps, settings in [(2, 6, []), (4, 9, []), (4, 12, ["--parallel.pipeline=2"]), (1, 15, [])]:
            with self.subTest(ranks=ranks, settings=settings):
                self.go_on("parts", ranks, steps, *settings)
        self.assert_same_run("runs/whole", "runs/parts")

    def test_other_grids_by_consent(self):
        self.go_on("consent", 1, 6)
        refused = self.go_on("consent", 3, 12, expect=USAGE)
        lanes = re.search(r"launch 2 or 4 ranks.*(--numerics.lanes=3) \(", refused.text)[1]
        other = self.go_on("consent", 3, 12, lanes)
        said = "from step 7 on the numbers are those of 3 lanes x 1 shard in microbatches of 8, no longer of 4 lanes x 1 shard "
        self.assertIn(said + "in microbatches of 12", other.text)
        self.assertIn("by consent, no longer 4 lanes x 1 shard in microbatches of 12; can go on with 1 or 3 replicas", other.text)
        refused = self.go_on("consent", 2, 18, "--parallel.tensor=2", expect=USAGE)
        shards = re.search(r"to go on with other shards .*(--numerics.shards=2) \(", refused.text)[1]
        self.go_on("consent", 2, 18, "--parallel.tensor=2", shards)
        # What was agreed to once holds on.
        silent = self.go_on("consent", 6, 24, "--parallel.tensor=2")
        self.assertNotIn("by consent", silent.text)
        inspected = self.alone("checkpoint", "inspect", "runs/consent", expect=DONE).text
        self.assertTrue(inspected.startswith("until step 6: 4 lanes x 1 shard in microbatches of 12\n"
                                             "until step 12: 3 lanes x 1 shard in microbatches of 8\n"), inspected)
        self.assertIn('virtual_grid = {"lanes":3,"loss_pieces":1,"microbatch":8,"shards":2}', inspected)
        self.assertIn(said, (self.directory / "runs/consent/log.txt").read_text())
        lines = (self.directory / "runs/consent/metrics.jsonl").read_text().splitlines()
        warnings = [line["text"] for line in map(json.loads, lines) if line.get("event") == "warning"]
        self.assertEqual([text.split(" the numbers")[0] for text in warnings if "no longer" in text],
                         ["from step 7 on", "from step 13 on"])
        steps = self.records("runs/consent", "train")
        self.assertEqual([int(row["step"]) for row in steps], list(range(1, 25)))
        mean = [sum(float(row["loss"]) for row in steps[at:at + 6]) / 6 for at in range(0, 24, 6)]
        self.assertEqual(mean, sorted(mean, reverse=True))
        self.assertEqual(len(set(mean)), 4)
        self.alone("report", "runs/consent", "--output=page.html", expect=DONE)
        self.assertIn(f"<li>{said}", (self.directory / "page.html").read_text())
        # Between consents the numbers are those of the virtual grid, whatever the grid.
        self.go_on("alone", 1, 6)
        self.go_on("alone", 1, 12, lanes)
        self.go_on("alone", 2, 18, "--parallel.pipeline=2", shards)
        self.go_on("alone", 1, 24)
        self.assert_same_run("runs/consent", "runs/alone")

    def test_what_consent_does_not_reach(self):
        self.go_on("fixed", 1, 3)
        for ranks, settings, words in [
                (5, [], ["parallel.data = 5 does not divide", "a batch.global (here 48) that 5 divides"]),
                (1, ["--batch.micro=6"], ["batch.micro is 6", "made with 12"]),
                (1, ["--numerics.lanes=5"], ["batch.global is 48, not divisible by 5 lanes"]),
                (1, ["--parallel.sync=local", "--local.steps=3", "--numerics.lanes=3"], ["parallel.sync = step, here it is local"]),
                (1, ["--optimizer.kind=sgd", "--numerics.lanes=3"], ["another run: there optimizer.kind"])]:
            with self.subTest(settings=settings):
                self.assert_refused(self.go_on("fixed", ranks, 6, *settings, expect=USAGE), USAGE, *words)
        # A config with a microbatch of its own has to give another one with the lanes.
        given = "--batch.micro=12"
        self.go_on("micro", 1, 3, given)
        refused = self.go_on("micro", 3, 6, given, expect=USAGE)
        both = re.search(r"(--numerics.lanes=3) (--batch.micro=8) \(", refused.text)
        self.assertIn("in microbatches of 8", self.go_on("micro", 3, 6, *both.groups()).text)


if __name__ == "__main__":
    harness.main()
