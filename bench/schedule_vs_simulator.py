#!/usr/bin/env python3
"""How near a pipeline's measured steps are to the simulator's, and what recording them costs.

    bench/schedule_vs_simulator.py build/release/bin/strata
    bench/schedule_vs_simulator.py build/release/bin/strata --schedules zb-h1 --rounds 5 --width 256

Trains a GPT on --stages ranks of one thread. The steps of a run: 5 warm up, --steps run unrecorded,
twice --steps are recorded (run.timeline), --steps run unrecorded again, so that a drift of the machine
meets both. Schedules take turns. For each recorded step, and then the median over the steps:
- "simulated": what `strata schedule simulate` says for the step's median times of forward, input
  gradient and weight gradient on each stage, without messages;
- "measured": from the first compute action to the last;
- "replay": the simulator's rules with each action's own measured time. The schedule's dependencies
  turn the scatter of these times into waits: replay over simulated is what scatter costs, measured
  over replay what messages, waits and the runtime cost;
- "step": step_seconds, optimizer and loss included; "recording": the median of the recorded steps
  over that of the unrecorded ones, less one.
"""
import argparse, collections, json, pathlib, statistics, tempfile

import measure

COMPUTE = ("forward", "backward-input", "backward-weight")
RATIOS = (("measured", "simulated"), ("replay", "simulated"), ("measured", "replay"), ("step", "simulated"))
WARM_UP = 5


def read_timeline(path):
    """Steps by number, each a list of a stage's compute actions: (begin, end, kind, microbatch) in ms."""
    events = json.loads(path.read_text())["traceEvents"]
    stages = {event["pid"]: event["args"]["stage"] for event in events if event["name"] == "process_name"}
    steps = collections.defaultdict(lambda: [[] for _ in stages])
    for event in events:
        action = event.get("args", {}).get("action")
        if event["ph"] == "X" and action in COMPUTE:
            begin = event["ts"] / 1e3
            steps[event["args"]["step"]][stages[event["pid"]]].append(
                (begin, begin + event["dur"] / 1e3, action, event["args"]["microbatch"]))
    return dict(steps)


def span(step):
    actions = [action for stage in step for action in stage]
    return max(end for _, end, _, _ in actions) - min(begin for begin, _, _, _ in actions)


def replay(step):
    """The step's time if each action began once its stage was free and what it reads was computed."""
    ends, now, place = {}, [0.0] * len(step), [0] * len(step)
    while any(place[s] < len(actions) for s, actions in enumerate(step)):
        for s, actions in enumerate(step):
            while place[s] < len(actions):
                begin, end, kind, m = actions[place[s]]
                peer = s + {"forward": -1, "backward-input": 1, "backward-weight": len(step)}[kind]
                if 0 <= peer < len(step) and (peer, kind, m) not in ends:
                    break
                now[s] = max(now[s], ends.get((peer, kind, m), 0.0)) + end - begin
                ends[s, kind, m] = now[s]
                place[s] += 1
    return max(now)


def one_run(strata, schedule, options, config, run):
    first = WARM_UP + options.steps + 1
    last = first + 2 * options.steps - 1
    measure.finish(measure.start(strata, config, run, options.stages, f"--parallel.schedule={schedule}",
                                 f"--run.timeline={first}-{last}"))
    walls = {line["step"]: 1e3 * line["step_seconds"] for line in measure.train_steps(run)}
    rows = []
    for number, step in read_timeline(run / "timeline.json").items():
        times = {kind: [statistics.median(end - begin for begin, end, what, _ in stage if what == kind)
                        for stage in step] for kind in COMPUTE}
        row = {**{f"{kind}, stage {stage}": each[stage] for kind, each in times.items() for stage in range(len(step))},
               "simulated": measure.simulated_ms(strata, schedule, options.stages, options.microbatches, times),
               "measured": span(step), "replay": replay(step), "step": walls.pop(number)}
        row |= {f"{above} / {below}": row[above] / row[below] for above, below in RATIOS}
        rows.append(row)
    found = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    bare = statistics.median(wall for number, wall in walls.items() if number > WARM_UP)
    return {**found, "recording": found["step"] / bare - 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata", type=lambda text: pathlib.Path(text).absolute())
    parser.add_argument("--schedules", nargs="+", default=["gpipe", "1f1b", "zb-h1"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--micro", type=int, default=12, help="samples of a microbatch")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--output", type=pathlib.Path, help="JSON of every run")
    options = parser.parse_args()

    runs = {schedule: [] for schedule in options.schedules}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        data = measure.import_tokens(options.strata, directory, 100000, 65)
        config = directory / "gpt.ini"
        measure.write_config(
            config, [], model={"preset": "gpt", "blocks": options.blocks, "heads": 4, "width": options.width,
                               "context": options.context, "vocabulary": 65},
            data={"train": data}, batch={"global": options.microbatches * options.micro, "micro": options.micro},
            parallel={"pipeline": options.stages}, numerics={"lanes": 1},
            optimizer={"kind": "adamw", "learning_rate": 0.001, "clip_norm": 1},
            train={"steps": WARM_UP + 4 * options.steps}, checkpoint={"every": 0})
        for turn in range(options.rounds):
            for schedule in options.schedules:
                runs[schedule].append(one_run(options.strata, schedule, options, config,
                                              directory / f"run-{turn}-{schedule}"))
    if options.output:
        options.output.write_text(json.dumps({"machine": measure.machine(), "runs": runs}, indent=1) + "\n")
    print(f"medians of {options.rounds} rounds (least to most), ms and ratios")
    for schedule, rounds in runs.items():
        print(schedule)
        for key in rounds[0]:
            values = sorted(one[key] for one in rounds)
            digits = 3 if "/" in key or key == "recording" else 2
            print(f"  {key:<26}{statistics.median(values):>10.{digits}f}   "
                  f"({values[0]:.{digits}f} to {values[-1]:.{digits}f})")


if __name__ == "__main__":
    main()
