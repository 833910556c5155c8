#!/usr/bin/env python3
"""Strong and weak scaling of a config over grids and schedules; resumes where it was killed.

    bench/scaling.py sweep build/release/bin/strata CONFIG.ini --grids 1x1x1 2x1x1 1x2x1 --schedules 1f1b zb-h1 \\
        --output=before.json [--mode=weak] [--section.key=value ...]
    bench/scaling.py plot before.json
    bench/scaling.py compare before.json after.json

sweep launches `strata train` on every grid DATAxPIPELINExTENSOR with every schedule (grids without a
pipeline once), --repeats times in turn, and writes medians over the steps after the first --skip.
Strong scaling trains the config as it is. Weak scaling multiplies batch.global and numerics.lanes by the
number of replicas; the config's are those of one. Each finished run is in --output before the next one
starts: called again, sweep runs what is missing, failed runs among it. Inside a Slurm allocation it
launches with srun, else with mpirun, where ranks may outnumber cores and have one thread each;
--launch="COMMAND {ranks} ..." replaces both. Beside --output it draws an SVG.

compare prints the step time of the second file over that of the first for each grid and schedule, the
slowest first. The noise is the wider of both files' (most - least) / median over the repeats.

Exit codes: 0 done; 1 a run failed (the others ran); 2 wrong use.
"""
import argparse, collections, configparser, hashlib, json, math, os, pathlib, re, shlex, shutil, signal
import statistics, subprocess, sys, tempfile
from xml.sax.saxutils import escape

import measure

PARTS = ("compute", "communication", "bubble", "data", "other")
IDENTITY = ("executable", "config", "mode", "steps", "skip", "settings", "launch")


def refuse(text):
    print(f"scaling.py: {text}", file=sys.stderr)
    sys.exit(2)


def grid_of(text):
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", text):
        refuse(f'"{text}" is not a grid; give DATAxPIPELINExTENSOR, each from 1, such as 2x1x1')
    return tuple(map(int, text.split("x")))


# Results.

def read_results(path):
    try:
        results = json.loads(path.read_text())
        for run in results["runs"]:
            grid_of(run["grid"])
            float(run["medians"]["step_seconds"]), run["schedule"], run["repeat"], run["ranks"]
        results["failures"], [results[key] for key in IDENTITY]
    except OSError as error:
        refuse(f"cannot read {path}: {error.strerror}")
    except (ValueError, LookupError, TypeError) as error:
        refuse(f"{path} holds no results of sweep ({type(error).__name__}: {error}); "
               "delete it, or give another file")
    return results


def commit(results, path):
    """Replaces the file at once: a kill leaves the old content or the new one."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as out:
        json.dump(results, out, indent=1)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    os.replace(out.name, path)


def by_case(results):
    """Runs of each (grid, schedule)."""
    cases = collections.defaultdict(list)
    for run in results["runs"]:
        cases[run["grid"], run["schedule"]].append(run)
    return cases


def rate_of(run):
    """Tokens or samples a second."""
    return run["medians"].get("tokens_per_second") or run["medians"]["samples_per_second"]


def spread(values):
    return statistics.median(values), min(values), max(values)


# Sweep.

def config_value(path, settings, section, key):
    """A setting of the command line or else of the config, or None."""
    given = [one.split("=", 1)[1] for one in settings if one.startswith(f"--{section}.{key}=")]
    reader = configparser.ConfigParser(strict=False, interpolation=None, inline_comment_prefixes=("#", ";"))
    try:
        reader.read(path)
    except configparser.Error as error:
        refuse(f"cannot read {path}: {error}")
    text = given[-1] if given else reader.get(section, key, fallback="0")
    if not text.strip().isdigit():
        refuse(f'{section}.{key} is "{text}", not a whole number')
    return int(text)


def launch_words(launch, ranks):
    if launch != "srun":
        return shlex.split(launch.format(ranks=ranks))
    words = ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", f"--ntasks={ranks}"]
    if "SLURM_NTASKS_PER_NODE" in os.environ:
        words.append(f"--nodes={math.ceil(ranks / int(os.environ['SLURM_NTASKS_PER_NODE']))}")
    return words + (["--gpu-bind=none"] if "SLURM_GPUS_ON_NODE" in os.environ else [])


def environment_of(launch):
    if launch != "srun":
        return measure.environment()
    cores = os.environ.get("SLURM_CPUS_PER_TASK", "1")
    return {"SRUN_CPUS_PER_TASK": cores, "SLURM_PMIX_FENCE": "ring", **os.environ}


def train(command, environment, limit):
    """Runs strata; gives an error text or None."""
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        return f"cannot start {command[0]}: {error.strerror}"
    try:
        text, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        text = f"strata: still running after {limit} s (--limit)"
    finally:
        if process.poll() is None:  # a time limit, or a stop of this script
            process.terminate()  # mpirun and srun end their ranks
            process.wait()
    if process.returncode == 0:
        return None
    said = [line for line in text.splitlines() if line.startswith("strata: ")] or text.strip().splitlines()[-1:]
    return f"exit code {process.returncode}: {' '.join(said)}"


def settings_of(options, grid, schedule):
    """What strata gets besides the config; later settings override earlier ones."""
    data, pipeline, tensor = grid
    settings = ["--data.test=", "--checkpoint.every=0", "--train.log_every=0", "--train.epochs=0",
                f"--train.steps={options.steps}", *(["--run.threads=1"] if options.launch != "srun" else []),
                *options.settings, f"--parallel.data={data}", f"--parallel.pipeline={pipeline}",
                f"--parallel.tensor={tensor}", *([f"--parallel.schedule={schedule}"] if schedule else [])]
    if options.mode == "weak":
        lanes = config_value(options.config, options.settings, "numerics", "lanes")
        batch = config_value(options.config, options.settings, "batch", "global")
        if batch == 0:
            refuse(f"--mode=weak needs batch.global in {options.config}: the samples of one replica")
        settings += [f"--batch.global={data * batch}", *([f"--numerics.lanes={data * lanes}"] if lanes else [])]
    return settings


def sweep(options):
    for path, what in ((options.strata, "executable"), (options.config, "config")):
        if not path.is_file():
            refuse(f"there is no {what} {path}")
    if not os.access(options.strata, os.X_OK):
        refuse(f"{options.strata} is not executable")
    if not options.output.parent.is_dir():
        refuse(f"there is no directory {options.output.parent} for {options.output.name}")
    if options.steps <= options.skip:
        refuse(f"--steps={options.steps} leaves nothing after --skip={options.skip}")
    identity = {
        "executable": hashlib.sha256(options.strata.read_bytes()).hexdigest()[:16],
        "config": hashlib.sha256(options.config.read_bytes()).hexdigest()[:16], "mode": options.mode,
        "steps": options.steps, "skip": options.skip, "settings": options.settings, "launch": options.launch}
    cases = list(dict.fromkeys((text, schedule) for text in options.grids
                               for schedule in (options.schedules if grid_of(text)[1] > 1 else [""])))
    results = {"title": options.config.name, **identity, "machine": measure.machine(), "runs": [], "failures": []}
    if options.output.exists():
        results = read_results(options.output)
        different = [key for key in IDENTITY if results[key] != identity[key]]
        if different:
            refuse(f"{options.output} holds a sweep of another {', '.join(different)}; give another --output")
    results["failures"] = []
    done = {(run["grid"], run["schedule"], run["repeat"]) for run in results["runs"]}
    failed = set()
    wanted = [(*case, repeat) for repeat in range(options.repeats) for case in cases]
    # Beside the results, because ranks on several nodes write to it.
    with tempfile.TemporaryDirectory(dir=options.output.parent, prefix=".scaling-") as scratch:
        for number, (text, schedule, repeat) in enumerate(wanted, 1):
            case = (text, schedule)
            if (*case, repeat) in done or case in failed:
                continue
            grid = grid_of(text)
            run_dir = pathlib.Path(scratch, f"run-{number}")
            command = [*launch_words(options.launch, math.prod(grid)), str(options.strata), "train",
                       str(options.config), *settings_of(options, grid, schedule), f"--run.dir={run_dir}"]
            said = failure = train(command, environment_of(options.launch), options.limit)
            if failure:
                failed.add(case)
                results["failures"].append({"grid": text, "schedule": schedule, "error": failure})
            else:
                medians = measure.medians(run_dir, options.skip)
                said = f"{1e3 * medians['step_seconds']:.2f} ms a step"
                results["runs"].append({"grid": text, "schedule": schedule, "repeat": repeat, "ranks": math.prod(grid),
                                        "medians": medians, "load": measure.machine()["load"][0]})
            commit(results, options.output)
            shutil.rmtree(run_dir, ignore_errors=True)
            print(f"{number}/{len(wanted)}: {' '.join(filter(None, case))}: {said}", file=sys.stderr, flush=True)
    print_table(results)
    plot(results, options.output.with_suffix(".svg"))
    return 1 if failed else 0


def base_of(results):
    """Ranks and median rate of the case with the fewest ranks."""
    runs = min(by_case(results).values(), key=lambda runs: runs[0]["ranks"])
    return runs[0]["ranks"], statistics.median(map(rate_of, runs))


def print_table(results):
    """Efficiency is the rate of a rank over that of the case with the fewest ranks."""
    print(f"{'grid':<10}{'schedule':<10}{'ranks':>6}{'step ms':>11}{'(least to most)':>22}{'rate/s':>12}"
          f"{'efficiency':>12}" + "".join(f"{part:>15}" for part in PARTS))
    for (text, schedule), runs in sorted(by_case(results).items(), key=lambda case: (case[1][0]["ranks"], case[0])):
        ranks, rate = base_of(results)
        middle, least, most = spread([1e3 * run["medians"]["step_seconds"] for run in runs])
        mine = statistics.median(map(rate_of, runs))
        shares = [statistics.median(run["medians"][f"{part}_seconds"] / run["medians"]["step_seconds"] for run in runs)
                  for part in PARTS]
        scatter = f"({least:.2f} to {most:.2f})"
        print(f"{text:<10}{schedule or '-':<10}{runs[0]['ranks']:>6}{middle:>11.2f}{scatter:>22}{mine:>12.4g}"
              f"{mine / rate * ranks / runs[0]['ranks']:>12.3f}" + "".join(f"{share:>15.1%}" for share in shares))
    for failure in results["failures"]:
        print(f"{failure['grid']:<10}{failure['schedule'] or '-':<10}{failure['error']}")


# Picture.

# Colours that colour-blind readers tell apart, with enough contrast on white and on the dark background.
COLOURS = ("#2f7fc1", "#d9730d", "#1a9a78", "#c0569b", "#8c7a1f", "#7a6fd0", "#c8413b", "#5f7f8f")
MARKS = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M-4,-4h8v8h-8z", "M0,-5L5,4H-5z", "M0,-5L5,0L0,5L-5,0z")
STYLE = """<style>
.paper { fill: #ffffff } .ink { fill: #1d2733 } .grid { stroke: #dde2e8 } .ideal { stroke: #7b8794 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14191f } .ink { fill: #e3e8ee } .grid { stroke: #313a44 } .ideal { stroke: #8d99a6 }
}
</style>"""


def families(results):
    """Points of each line: ranks, and median, least and most rate; the fastest grid of as many ranks."""
    lines = collections.defaultdict(dict)
    points = {case: (runs[0]["ranks"], *spread(list(map(rate_of, runs)))) for case, runs in by_case(results).items()}
    for (text, schedule), point in points.items():
        axes = " x ".join(axis for axis, ranks in zip(("data", "pipeline", "tensor"), grid_of(text)) if ranks > 1)
        line = lines[", ".join(filter(None, (axes, schedule)))]
        if point[0] not in line or point[1] > line[point[0]][1]:
            line[point[0]] = (*point, text)
    alone = lines.pop("", {})
    return {name: [line[ranks] for ranks in sorted(line)]
            for name, line in ({name: {**alone, **line} for name, line in lines.items()} or {"1 rank": alone}).items()}


def y_ticks(low, high):
    """Round numbers, closer together where few would fit."""
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [digit * 10.0 ** power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
                 for digit in digits if low <= digit * 10.0 ** power <= high]
        if len(ticks) >= 4:
            break
    return ticks


def plot(results, path):
    """Rate against ranks, both logarithmic: medians with bars from least to most, and the ideal line."""
    if not results["runs"]:
        return
    lines = families(results)
    points = [point for line in lines.values() for point in line]
    first, rate = base_of(results)
    ranks = sorted({point[0] for point in points})
    last = ranks[-1]
    low, high = 0.8 * min(point[2] for point in points), 1.15 * max(rate * last / first, *(p[3] for p in points))
    left, top, width, height = 74, 58, 470, 320

    def x(count):
        return left + width * (0.06 + 0.88 * (math.log(count / first) / math.log(last / first) if last > first else 0.5))

    def y(value):
        return top + height * (1 - math.log(value / low) / math.log(high / low))

    unit = "tokens/s" if "tokens_per_second" in results["runs"][0]["medians"] else "samples/s"
    repeats = max(map(len, by_case(results).values()))
    machine = results["machine"]
    legend = left + width + 18
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {legend + 190} {top + height + 62}" '
           f'width="{legend + 190}" height="{top + height + 62}" font-family="sans-serif" font-size="12">', STYLE,
           '<rect class="paper" width="100%" height="100%"/>']

    def text(at_x, at_y, words, more=""):
        out.append(f'<text class="ink" x="{at_x:.1f}" y="{at_y:.1f}" {more}>{escape(words)}</text>')

    text(left, 24, f'{results["title"]}: {results["mode"]} scaling', 'font-size="16" font-weight="bold"')
    text(left, 43, f'medians of {repeats} runs, bars from least to most; {machine["cores"]} cores, {machine["processor"]}',
         'font-size="11"')
    for tick in y_ticks(low, high):
        out.append(f'<path class="grid" d="M{left},{y(tick):.1f}h{width}"/>')
        text(left - 8, y(tick) + 4, f"{tick:,.0f}" if tick >= 1 else f"{tick:g}", 'text-anchor="end"')
    for count in ranks:
        out.append(f'<path class="grid" d="M{x(count):.1f},{top}v{height}"/>')
        text(x(count), top + height + 18, str(count), 'text-anchor="middle"')
    text(left + width / 2, top + height + 42, "ranks", 'text-anchor="middle"')
    text(18, top + height / 2, unit, f'text-anchor="middle" transform="rotate(-90 18 {top + height / 2})"')
    out.append(f'<path class="ideal" d="M{x(first):.1f},{y(rate):.1f}L{x(last):.1f},{y(rate * last / first):.1f}" '
               f'stroke-dasharray="6 4" stroke-width="1.5"/>')
    out.append(f'<path class="ideal" d="M{legend},{top + 8}h22" stroke-dasharray="6 4" stroke-width="1.5"/>')
    text(legend + 30, top + 12, "ideal")
    for number, (name, line) in enumerate(lines.items()):
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        shift = 5 * (number - (len(lines) - 1) / 2)  # so that bars of several lines stay apart; all share one rank
        places = [x(point[0]) + (shift if point[0] > 1 else 0) for point in line]
        track = " ".join(f"{at:.1f},{y(point[1]):.1f}" for at, point in zip(places, line))
        out.append(f'<polyline points="{track}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for at, (count, middle, least, most, grid) in zip(places, line):
            shade = colour if count > 1 else "#7b8794"  # of one rank, which is in all lines
            out.append(f'<path d="M{at:.1f},{y(least):.1f}V{y(most):.1f}M{at - 4:.1f},{y(least):.1f}h8'
                       f'M{at - 4:.1f},{y(most):.1f}h8" stroke="{shade}" stroke-width="1.5"/>')
            out.append(f'<path d="{mark}" transform="translate({at:.1f} {y(middle):.1f})" fill="{shade}">'
                       f'<title>{grid}: {middle:.4g} {unit} ({least:.4g} to {most:.4g})</title></path>')
        row = top + 12 + 22 * (number + 1)
        out.append(f'<path d="M{legend},{row - 4}h22" stroke="{colour}" stroke-width="2"/>'
                   f'<path d="{mark}" transform="translate({legend + 11} {row - 4})" fill="{colour}"/>')
        text(legend + 30, row, name)
    path.write_text("\n".join(out) + "\n</svg>\n")
    print(path)


# Compare.

def compare(options):
    before, after = read_results(options.before), read_results(options.after)
    different = [key for key in IDENTITY if key != "executable" and before[key] != after[key]]
    different += [key for key in ("processor", "cores") if before["machine"][key] != after["machine"][key]]
    if different:
        print(f"scaling.py: the two sweeps differ in {', '.join(different)}", file=sys.stderr)
    left, right = ({case: [run["medians"]["step_seconds"] for run in runs] for case, runs in by_case(one).items()}
                   for one in (before, after))
    if not left.keys() & right.keys():
        refuse(f"{options.before} and {options.after} have no grid and schedule in common")
    rows = []
    for case in left.keys() & right.keys():
        (a, a_least, a_most), (b, b_least, b_most) = spread(left[case]), spread(right[case])
        known = min(len(left[case]), len(right[case])) > 1
        noise = max((a_most - a_least) / a, (b_most - b_least) / b) if known else None
        rows.append((b / a, case, a, b, noise))
    print(f"{'grid':<10}{'schedule':<10}{'before ms':>12}{'after ms':>12}{'ratio':>8}{'noise':>8}")
    for ratio, (grid, schedule), a, b, noise in sorted(rows, reverse=True):
        verdict = "one run, noise unknown" if noise is None else "" if abs(ratio - 1) <= noise else (
            "slower" if ratio > 1 else "faster")
        print(f"{grid:<10}{schedule or '-':<10}{1e3 * a:>12.2f}{1e3 * b:>12.2f}{ratio:>8.3f}"
              f"{'-' if noise is None else f'{noise:.3f}':>8}  {verdict}".rstrip())
    for grid, schedule in sorted(left.keys() ^ right.keys()):
        where = options.before if (grid, schedule) in left else options.after
        print(f"{grid:<10}{schedule or '-':<10}in {where} only")
    return 0


def count(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number from 1')
    return int(text)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the ranks too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("sweep", allow_abbrev=False)
    one.add_argument("strata", type=lambda text: pathlib.Path(text).absolute())
    one.add_argument("config", type=pathlib.Path)
    one.add_argument("--output", required=True, type=lambda text: pathlib.Path(text).absolute())
    one.add_argument("--grids", nargs="+", default=["1x1x1", "2x1x1", "1x2x1", "1x1x2"])
    one.add_argument("--schedules", nargs="+", default=["1f1b"])
    one.add_argument("--mode", choices=["strong", "weak"], default="strong")
    one.add_argument("--repeats", type=count, default=3)
    one.add_argument("--steps", type=count, default=20)
    one.add_argument("--skip", type=count, default=5, help="first steps that do not count")
    one.add_argument("--limit", type=float, default=3600, help="seconds a run may take")
    one.add_argument("--launch", default="srun" if "SLURM_JOB_ID" in os.environ else "mpirun -n {ranks}")
    two = commands.add_parser("plot")
    two.add_argument("results", type=pathlib.Path)
    three = commands.add_parser("compare")
    three.add_argument("before", type=pathlib.Path)
    three.add_argument("after", type=pathlib.Path)
    options, settings = parser.parse_known_args()
    for setting in settings:
        if options.command != "sweep" or not re.match(r"--\w+\.\w+=", setting):
            refuse(f'unknown argument "{setting}"; settings of strata have the form --section.key=value')
    options.settings = settings
    if options.command == "plot":
        return plot(read_results(options.results), options.results.with_suffix(".svg"))
    return sweep(options) if options.command == "sweep" else compare(options)


if __name__ == "__main__":
    sys.exit(main())
