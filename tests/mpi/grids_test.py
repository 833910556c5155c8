"""The same bits from real ranks as from one, for each kind of message. grids.* compares many more, in one process."""

import harness
import language

# Each axis, all of them, and each schedule.
RUNS = [((1, 1, 1), []),
        ((2, 1, 1), ["--train.repeat_every=2", "--parallel.bucket=0.02"]),
        ((4, 1, 1), ["--parallel.node_ranks=2", "--parallel.bucket=0.001"]),
        ((1, 1, 4), ["--parallel.sequence=on", "--run.threads=2"]),
        ((1, 2, 1), ["--parallel.schedule=gpipe", "--train.recompute=full"]),
        ((1, 4, 1), ["--parallel.schedule=zb-h2"]),
        ((1, 3, 1), ["--parallel.schedule=interleaved"]),
        ((1, 2, 2), ["--parallel.schedule=zb-v", "--train.recompute=selective"]),
        ((1, 3, 1), ["--parallel.schedule=auto"]),
        ((2, 2, 2), ["--parallel.schedule=zb-h1", "--parallel.sequence=on", "--train.repeat_every=2"])]

NORMS = harness.config_text(
    ["conv 8 5 stride=2 parallel=column", "batch_norm relu", "dropout 0.1", "avg_pool 3 stride=2 padding=1", "flatten",
     "dense 12 parallel=row relu", "dense 4"],
    data="images", model={"sync_batch_norm": "on"}, batch={"global": 16, "micro": 2},
    numerics={"lanes": 4, "shards": 2}, optimizer={"kind": "adam"}, train={"steps": 3, "evaluate_every": 2})


class Grids(language.LanguageTest):
    def test_a_tied_table(self):
        self.same_on(RUNS, "--numerics.lanes=8", "--numerics.dtype=bfloat16", name="gpt")
        log = (self.directory / "gpt-2" / "log.txt").read_text()
        self.assertIn("nodes: ", log)
        self.assertIn("2 replicas each", log)

    def test_statistics_of_all_lanes(self):
        self.import_classes("images", (3, 16, 16), 4, train=64, test=8)
        config = self.write_config("norms.ini", NORMS)
        self.same_on([((1, 1, 1), []), ((2, 2, 2), ["--data.reader_threads=3"])], name="norms", config=config)

    def test_stages_that_send_what_they_hold(self):
        """Messages of 20 KiB, which MPI does not copy when they are sent: a received one is sent on, or recomputed."""
        self.import_classes("wide", (40, 30), 5, train=77, test=33)
        config = self.write_config("wide.ini", harness.config_text(
            ["dense 32", "gelu", "flatten", "dense 5"], data="wide", batch={"global": 128, "micro": 4},
            numerics={"lanes": 2}, optimizer={"kind": "adam"}, train={"steps": 8}))
        middle, end = ["--parallel.split=0,2,3"], ["--parallel.split=0,3", "--train.recompute=selective"]
        self.same_on([((1, 1), []), *(((1, 3), [*middle, f"--parallel.schedule={kind}"])
                                      for kind in ("gpipe", "1f1b", "zb-h2")),
                      ((2, 3), [*middle, "--parallel.schedule=zb-h1"]), ((1, 2), [*end, "--parallel.schedule=gpipe"])],
                     name="wide", config=config)

    def test_a_schedule_file(self):
        """A run continues and evaluates without the file."""
        made = self.alone("schedule", "make", "--memory=5", "--chunks=1", "--stages=2", "--output=made.csv",
                          expect=harness.DONE)
        few = ["--numerics.lanes=2", "--train.steps=2"]
        self.train(self.config, (1, 2, 1), "file", *few, "--parallel.schedule=file:made.csv")
        (self.directory / "made.csv").unlink()
        self.alone("evaluate", "file", expect=harness.DONE)
        self.train(self.config, (1, 1, 1), "file", "--numerics.lanes=2", "--train.steps=3", "--run.resume=must")


if __name__ == "__main__":
    harness.main()
