"""Numbers that are not finite, and passing faults of one rank, which the rig injects."""

import json
import re

import harness

NETWORK = harness.config_text(
    ["dense 16 relu", "dense 4"], batch={"global": 16}, numerics={"lanes": 2},
    optimizer={"kind": "adam"}, train={"steps": 4})


class Faults(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=80, test=20)
        cls().train(cls.config, (1, 1), "undisturbed")

    def faulty(self, fault, run, *settings, grid=(2, 1), expect=harness.DONE):
        """Trains with the fault PLACE:STEP:RANK."""
        with harness.rig(FAULT=fault):
            return self.train(self.config, grid, run, *settings, expect=expect)

    def weights(self, run):
        return harness.tensors(harness.checkpoints(self.directory / run)[-1])

    def test_a_run_that_diverges_ends_with_every_choice(self):
        for choice, step, words in [("stop", 2, "the loss is"),
                                    ("skip", 12, "as at 10 steps before it, which were skipped"),
                                    ("repeat", 2, "and the same when computed once more")]:
            finished = self.train(self.config, (2, 1), f"diverged-{choice}", "--train.steps=20",
                                  "--optimizer.kind=sgd", "--optimizer.learning_rate=1e38",
                                  f"--train.nonfinite={choice}", "--train.repeat_every=1", expect=harness.DIVERGED)
            self.assert_refused(finished, harness.DIVERGED, f"the run diverged: at step {step} ", words)
            self.assertEqual(harness.checkpoints(self.directory / f"diverged-{choice}"), [])

    def test_a_passing_fault_stops_the_run_before_the_update(self):
        finished = self.faulty("gradient:3:1", "stopped", expect=harness.DIVERGED)
        self.assert_refused(finished, harness.DIVERGED, "at step 3", "the gradient norm nan")

    def test_the_save_before_a_divergence_is_completed(self):
        finished = self.faulty("gradient:3:1", "saved", "--checkpoint.every=2", expect=harness.DIVERGED)
        self.assert_refused(finished, harness.DIVERGED, "at step 3", "the gradient norm nan")
        self.assertEqual([path.name for path in harness.checkpoints(self.directory / "saved")], ["step-00000002"])

    def test_a_skipped_step_leaves_the_weights_as_they_were(self):
        self.train(self.config, (1, 1), "two", "--train.steps=2")
        finished = self.faulty("gradient:3:1", "skipped", "--train.nonfinite=skip", "--train.steps=3")
        self.assertIn("step 3 is skipped", finished.text)
        self.assertIn("1 of 3 steps were skipped", finished.text)
        self.assertEqual(harness.differing_tensors(self.weights("two"), self.weights("skipped")), [])
        lines = (self.directory / "skipped" / "metrics.jsonl").read_text().splitlines()
        steps = [line for line in lines if '"kind":"train"' in line]
        self.assertEqual(["skipped" in line for line in steps[:3]], [False, False, True])

    def test_a_repeated_step_gives_the_bits_of_an_undisturbed_run(self):
        for grid, rank in [((2, 1), 1), ((1, 2), 0)]:
            run = f"repeated-{rank}"
            finished = self.faulty(f"gradient:3:{rank}", run, "--train.nonfinite=repeat", grid=grid)
            self.assertIn("point to a hardware fault", finished.text)
            self.assert_same_run("undisturbed", run)

    def test_a_replica_with_other_weights_is_named(self):
        check = ["--train.check_every=1", "--checkpoint.every=1", "--checkpoint.background=off"]
        # One of three is outvoted; of two, both are suspects; on one rank a change is seen all the same.
        for grid, fault, words in [((3, 1), "weights:3:2", "replicas hold different weights; the suspect is: rank 2 on"),
                                   ((2, 1), "weights:3:1", "the suspects are: rank 0 on"),
                                   ((1, 2), "state:3:1", "optimizer state changed after the update of step 3, where "
                                                         "nothing writes to them; the suspect is: rank 1 on")]:
            run = f"corrupt-{fault}-{grid[0]}".replace(":", "-")
            with self.subTest(grid=grid, fault=fault):
                finished = self.faulty(fault, run, *check, "--numerics.lanes=6", "--batch.global=18",
                                       grid=grid, expect=harness.PEER)
                self.assert_refused(finished, harness.PEER, "silent corruption: ", words, "--run.resume=auto")
                self.assertEqual(harness.checkpoints(self.directory / run)[-1].name, "step-00000002")

    def test_a_flipped_product_is_found_by_the_repeated_step(self):
        repeated = ["--train.repeat_every=1", "--checkpoint.every=1", "--checkpoint.background=off",
                    "--numerics.lanes=4"]
        # The runs of step 3 that the fault hits: 0 on other lanes, 1 on the own ones, 2 to decide.
        for grid, rank, runs, suspects in [
                ((4, 1), 2, "012", [2]), ((4, 1), 3, "0", [3]), ((4, 1), 0, "1", [0]),
                # Two replicas: a passing fault is outvoted, a lasting one is not.
                ((2, 1), 1, "0", [1]), ((2, 1), 0, "1", [0]), ((2, 1), 1, "012", [0, 1]),
                # The stage that is first in the data flow.
                ((2, 2), 1, "1", [1]), ((2, 2), 3, "0", [3]), ((2, 2), 2, "012", [2, 3]),
                ((1, 1), 0, "1", [0])]:
            with self.subTest(grid=grid, rank=rank, runs=runs):
                run = f"product-{grid[0]}{grid[1]}-{rank}-{runs}"
                finished = self.faulty(f"product:3:{rank}:{runs}", run, *repeated, grid=grid, expect=harness.PEER)
                self.assert_refused(finished, harness.PEER, "silent corruption: step 3, computed again on ",
                                    "gave other numbers", "--run.resume=auto")
                named = re.search(r"suspects? (?:is|are): (.*?)\. Nothing", finished.reports()[0]).group(1)
                self.assertEqual([int(text) for text in re.findall(r"rank (\d+) on", named)], suspects)
                self.assertEqual(harness.checkpoints(self.directory / run)[-1].name, "step-00000002")

    def test_a_sniff_test_names_ranks_with_other_results(self):
        # PART:STEP:RANKS:HOW of the rig. Of three ranks one is outvoted, of two both are named, one compares with itself.
        for grid, disturbance, ranks, words in [
                ((3, 1), "products:0:1:flip", [1], "products gave the bits "),
                ((2, 1), "products:2:0,1:flip", [0, 1], "no majority of 2 like ranks agrees"),
                ((1, 1), "norm:2:0:once", [0], "norm and softmax gave other bits when computed again"),
                ((3, 1), "reductions:0:2:flip", [2], "a sum of known numbers is wrong"),
                ((1, 2), "messages:2:1:flip", [1], "a message of rank 0 arrived with other bits than were sent"),
                ((3, 1), "products:2:1:0.05", [], "times the median of 3 like ranks")]:
            with self.subTest(grid=grid, disturbance=disturbance), harness.rig(SNIFF=disturbance):
                run = "sniff-" + re.sub("[:,]", "-", disturbance)
                finished = self.train(self.config, grid, run, "--run.sniff=2", "--numerics.lanes=6", "--batch.global=18",
                                      "--checkpoint.every=1", "--checkpoint.background=off", expect=None)
                step = int(disturbance.split(":")[1])
                if ranks:
                    self.assert_refused(finished, harness.PEER, f"the sniff test before step {step + 1} found wrong results",
                                        words, "Nothing more is saved", "--run.resume=auto")
                    self.assertEqual([int(text) for text in re.findall(r"rank (\d+) on", finished.reports()[0])], ranks)
                    # That of the step before the test is the last.
                    self.assertEqual(len(harness.checkpoints(self.directory / run)), max(0, step - 1))
                else:
                    self.assertEqual(finished.code, harness.DONE, finished.text)
                    self.assertRegex(finished.text, f"before step 3 found slow ranks: rank 1 on .*: products take .* {words}")

    def test_a_run_without_sniff_tests(self):
        with harness.rig(SNIFF="products:0:1:flip"):
            self.train(self.config, (3, 1), "unsniffed", "--run.sniff=off", "--numerics.lanes=6", "--batch.global=18")

    def test_checks_change_no_numbers(self):
        finished = self.train(self.config, (2, 1), "checked", "--train.check_every=1", "--train.repeat_every=2",
                              "--run.sniff=1")
        self.assertRegex(finished.text, "checks of weights and optimizer state: 4, .*; repeated steps: 2, ")
        self.assertIn("sniff tests: 5, ", finished.text)
        self.assert_same_run("undisturbed", "checked")

    def test_a_step_in_200_is_repeated(self):
        for settings, repeats in [([], True), (["--train.repeat_every=0"], False), (["--train.check=off"], False),
                                  (["--numerics.mode=fast"], False)]:
            run = "long" + "".join(settings)
            text = self.train(self.config, (2, 1), run, "--train.steps=250", *settings).text
            self.assertEqual("repeated steps: 1, " in text, repeats, text)

    def test_a_slow_rank_is_named(self):
        # Longer than a rank that computes little waits for a core, on a busy machine too. The second line in a row names it.
        with harness.rig(SLOW="1:0.2"):
            text = self.train(self.config, (2, 1), "slow", "--train.steps=9", "--train.log_every=3").text
        self.assertEqual(text.count("warning: rank 1 computes for"), 1, text)
        self.assertRegex(text, r"compute \S+ / \S+ / \S+ ms \(rank 1\)")
        records = map(json.loads, (self.directory / "slow" / "metrics.jsonl").read_text().splitlines())
        (named,) = (record for record in records if record.get("event") == "slow")
        self.assertEqual(named["rank"], 1)
        self.assertGreaterEqual(named["seconds"], 0.2)
        self.assertGreater(named["seconds"], 1.5 * named["peers_seconds"])


if __name__ == "__main__":
    harness.main()
