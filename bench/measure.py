"""What the benchmark scripts share: data sets made on the spot, runs of strata, medians."""
import argparse, json, os, pathlib, platform, random, statistics, struct, subprocess


def write_idx(path, kind, extents, content):
    """An IDX file; kind 8 is unsigned bytes, 13 is 32-bit floats."""
    header = struct.pack(f">BBBB{len(extents)}I", 0, 0, kind, len(extents), *extents)
    path.write_bytes(header + content)


def write_npy(path, descr, shape, content):
    """A NumPy array file, format 1.0, in row-major order."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content)


def import_images(strata, directory, samples=8000):
    """Random 28 x 28 images of ten classes as a data set; gives its master file."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    write_idx(directory / "images", 8, (samples, 28, 28), draw.randbytes(samples * 784))
    write_idx(directory / "labels", 8, (samples,), bytes(i % 10 for i in range(samples)))
    return import_data(strata, directory, "idx", "--images=images", "--labels=labels")


def import_features(strata, directory, samples, features):
    """Rows of random float32 of ten classes as a data set; gives its master file."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    row = struct.pack(f"<{features}f", *(draw.gauss(0, 1) for _ in range(features)))
    rows = b"".join(row[shift:] + row[:shift]
                    for shift in (4 * draw.randrange(features) for _ in range(samples)))
    write_npy(directory / "inputs.npy", "<f4", (samples, features), rows)
    labels = struct.pack(f"<{samples}q", *(i % 10 for i in range(samples)))
    write_npy(directory / "targets.npy", "<i8", (samples,), labels)
    return import_data(strata, directory, "npy", "--inputs=inputs.npy", "--targets=targets.npy")


def import_tokens(strata, directory, tokens, vocabulary):
    """Random token ids as a data set; gives its master file."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    ids = struct.pack(f"<{tokens}H", *(draw.randrange(vocabulary) for _ in range(tokens)))
    (directory / "tokens.bin").write_bytes(ids)
    return import_data(strata, directory, "tokens-nanogpt", f"--vocabulary={vocabulary}",
                       "--files=tokens.bin")


def import_pictures(strata, directory, samples=2560):
    """Random pictures of 3 x 32 x 32 of ten classes as a data set; gives its master file."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    (directory / "batch.bin").write_bytes(
        b"".join(bytes([i % 10]) + draw.randbytes(3072) for i in range(samples)))
    return import_data(strata, directory, "cifar10", "--files=batch.bin")


def import_data(strata, directory, form, *files):
    subprocess.run([strata, "data", "import", f"--format={form}", *files, "--split=1.0",
                    "--output=data", "--overwrite"],
                   cwd=directory, check=True, capture_output=True)
    return directory / "data" / "train.h5"


def write_config(path, layers, model=None, **sections):
    """A config file: write_config(path, ["dense 10"], batch={"global": 128})."""
    lines = ["[model]"] + [f"layer = {layer}" for layer in layers]
    lines += [f"{key} = {value}" for key, value in (model or {}).items()]
    for section, keys in sections.items():
        lines += [f"[{section}]"] + [f"{key} = {value}" for key, value in keys.items()]
    path.write_text("\n".join(lines) + "\n")


def environment():
    """MPI as it has to be where ranks may outnumber cores, and one OpenMP thread."""
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_pml": "ob1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # with Open MPI 5
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def rig(strata):
    """The program with disturbances (tests/support/rig.cpp), beside strata."""
    return pathlib.Path(strata).with_name("strata_rig")


def start(strata, config, run_dir, ranks=1, *options, **variables):
    """`variables`: of the rig, as in TIMES="10:10:10"."""
    launch = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    return subprocess.Popen([*launch, str(rig(strata) if variables else strata), "train", str(config),
                             f"--run.dir={run_dir}", "--run.threads=1", *options],
                            env=environment() | {f"STRATA_RIG_{name}": value for name, value in variables.items()}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def finish(process):
    """Waits for a run; on failure shows what it said."""
    text, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(process.args)} ended with {process.returncode}:\n{text}")


def torch_options(description, **further):
    """The command line of a comparison with PyTorch; further options by name, each with its default, a number, or with
    what argparse takes."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("baseline", help="the PyTorch script")
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python that has PyTorch")
    parser.add_argument("--blas", default="",
                        help="directory of the libblas.so.3 that PyTorch is to use")
    for name, given in {"rounds": 5, **further}.items():
        settings = given if isinstance(given, dict) else {"type": int, "default": given}
        parser.add_argument(f"--{name}", **settings)
    options = parser.parse_args()
    options.strata = os.path.abspath(options.strata)
    return options


def torch_result(options, *arguments):
    """The line of JSON of the PyTorch script on one thread."""
    variables = environment()
    if options.blas:
        variables["LD_LIBRARY_PATH"] = options.blas
    command = [options.python, options.baseline, *map(str, arguments), "--threads", "1"]
    result = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])


def torch_seconds(options, *arguments):
    """The median step of the PyTorch script on one thread."""
    return torch_result(options, *arguments)["step_s"]


def train_steps(run_dir):
    """The training lines of a run's metrics."""
    lines = (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [step for step in map(json.loads, lines) if step["kind"] == "train"]


def medians(run_dir, skip):
    """The median of every number of a run's steps after the first `skip`, and the shortest step."""
    steps = train_steps(run_dir)[skip:]
    keys = [key for key, value in steps[0].items() if key not in ("kind", "step")]
    found = {key: statistics.median(step[key] for step in steps) for key in keys}
    found["least_step_seconds"] = min(step["step_seconds"] for step in steps)
    return found


def simulated_ms(strata, schedule, stages, microbatches, times):
    """The simulator's step time; `times` by kind of action: ms of each stage."""
    finished = subprocess.run(
        [strata, "schedule", "simulate", schedule, f"--stages={stages}", f"--microbatches={microbatches}",
         *(f"--{kind}={','.join(f'{one:.4f}' for one in each)}" for kind, each in times.items())],
        capture_output=True, text=True, check=True)
    line = next(line for line in finished.stdout.splitlines() if line.startswith("step "))
    return float(line.split()[1])


def machine():
    """The processor, cores and load of this machine."""
    model = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines()
                 if line.startswith("model name")]
        model = names[0] if names else model
    load = [round(value, 2) for value in os.getloadavg()]
    return {"processor": model, "cores": os.cpu_count(), "load": load}
