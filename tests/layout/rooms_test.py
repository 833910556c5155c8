"""Holds the rooms of the project to the design: who may include whom, and which libraries stay where.

Usage: rooms_test.py SOURCE_DIR
"""

import pathlib
import re
import sys

# The design's table: each room and the rooms that it may include. What those may include, it may too.
DESIGN = {
    "core": "",
    "grid": "core",
    "device": "core",
    "io": "grid core",
    "ops": "device core",
    "comm": "device ops grid",
    "nn": "ops comm grid",
    "pipeline": "nn comm grid",
    "optim": "nn comm",
    "config": "optim pipeline nn comm ops io device grid core",
    "plan": "config",
    "forecast": "plan",
    "train": "plan",
    "exchange": "train",
    "app": "exchange forecast",
}

# The floors (sub-directories) of rooms: each and the floors of its room that it may include. "" is the room's own
# directory; families of operations share only what lies below them.
FLOORS = {
    "app": {"": "commands commands/run commands/data commands/models commands/planning commands/watching environment",
            "commands": "environment", "commands/run": "commands/planning commands environment",
            "commands/data": "commands environment", "commands/models": "commands environment",
            "commands/planning": "commands/run commands drawing environment",
            "commands/watching": "commands/planning commands/run commands drawing environment", "drawing": "", "environment": ""},
    "train": {"": "", "loop": "replication state checkpoint record .", "replication": "state checkpoint record .",
              "state": "checkpoint record .", "checkpoint": "record .", "record": "."},
    "nn": {"": "", "layers": ".", "model": "layers .", "stage": "model ."},
    "comm": {"": "", "mpi": ".", "nccl": ".", "staged": "."},
    "ops": {"": "cuda onednn simd", "simd": "", "onednn": ".", "cuda": ".", "cudnn": "cuda .",
            **dict.fromkeys(("matmul", "attention", "convolution", "norm", "loss", "elementwise", "reduce", "embedding",
                             "update"), "cudnn cuda onednn simd .")},
    "io": {"hdf5": "files", "files": "", "images": "files", "tokenizer": "hdf5 files", "dataset": "tokenizer images hdf5 files",
           "loader": "dataset files", "import": "dataset tokenizer images hdf5 files", "checkpoint": "tokenizer hdf5 files",
           "exchange": "files"},
}

# Headers of libraries that one room keeps to itself.
OWNERS = {
    r"hdf5.*\.h|H5\w+\.h": "io",
    r"zlib\.h": "io",
    r"zstd\.h": "io",
    r"utf8proc\.h": "io",
    r"pcre2\.h": "io",
    r"sentencepiece_.*\.h": "io",
    r"turbojpeg\.h": "io",
    r"png\.h": "io",
    r"mpi\.h": "comm",
    r"(oneapi/)?dnnl.*": "ops",
    r"Random123/.*": "core",
    r"openssl/.*": "core",
    r"xxhash\.h": "core",
    r"hwloc.*": "app",
}

# Where a value of parallel.sync may be known by name, the names, and how many lines elsewhere have them at most.
REPLICATION = re.compile(r"(src|include/strata)/(plan/replication|train/replication|config/|comm/|grid/|optim/(outer_optimizer|parameter_server))")
KINDS = re.compile(r"[Ii]sland|kAsync\b|(?<!:)(?<!cp\.)\basync\b|[Aa]synchronous (worker|training|unit|step)")
MOST_LINES_OF_KINDS = 3

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def declared_rooms(cmake_text):
    """Room -> rooms in its DEPENDS, as CMakeLists.txt declares them."""
    rooms = {}
    for name, arguments in re.findall(r"^strata_room\((\w+)([^)]*)\)", cmake_text, re.MULTILINE):
        match = re.search(r"\bDEPENDS\b(.*?)(\bLIBRARIES\b|\bCUDA\b|$)", arguments, re.DOTALL)
        rooms[name] = set(match.group(1).split())
    return rooms


def allowed(room):
    """The rooms below `room`."""
    below = set()
    for other in DESIGN[room].split():
        below |= {other} | allowed(other)
    return below


def declaration_problems(rooms):
    for room, depends in rooms.items():
        if room not in DESIGN:
            yield f"CMakeLists.txt: the design has no room \"{room}\""
            continue
        for other in sorted(depends - allowed(room)):
            yield f"CMakeLists.txt: {room} depends on {other}, which the design does not allow"


def directory_of(root, room):
    return root / "io" if room == "io" else root / "src" / room


def floor_of(path, directory):
    return "/".join(path.relative_to(directory).parts[:-1])


def public_headers(room, directory):
    """Each public header of a room, as it is included, and the source that defines what it declares: that of its name,
    else one that includes it first."""
    owners = {}
    for path in sorted(directory.rglob("*.cpp")):
        includes = [header for _, header in INCLUDE.findall(path.read_text(encoding="utf-8"))]
        if includes and includes[0].startswith(f"strata/{room}/"):
            header = includes[0]
            if header not in owners or header.endswith(f"/{path.stem}.hpp"):
                owners[header] = path
    return owners


# Their public headers declare operations, whose options all floors share.
FLAT_HEADERS = {"ops"}


def floor_problems(path, header, room, directory, owners):
    """`path` includes `header` of its own room, given from the room's directory or as a public one."""
    owner = owners.get(header, directory / header)
    if header.startswith("strata/") and (header not in owners or room in FLAT_HEADERS):
        return  # it declares types alone
    if not owner.is_file():
        yield f'includes "{header}", which {room} does not have'
        return
    floor, other = floor_of(path, directory), floor_of(owner, directory)
    allowed_floors = FLOORS.get(room, {}).get(floor)
    if allowed_floors is None:
        if floor or other:
            yield f'lies on the floor "{floor}", which {room} does not have'
    elif other != floor and (other or ".") not in allowed_floors.split():
        yield f'includes "{header}": {room}/{floor} may include of its room {allowed_floors or "nothing"}'


def file_problems(root, rooms):
    sources = []
    for room in rooms:
        for folder in (directory_of(root, room), root / "include" / "strata" / room):
            if folder.is_dir():
                sources += [(room, path) for path in sorted(folder.rglob("*"))
                            if path.is_file() and path.parent.name != "__pycache__"]  # of tests run by hand
    known = {path for _, path in sources}
    owners = {room: public_headers(room, directory_of(root, room)) for room in rooms}
    for path in sorted((root / "include").rglob("*")):
        if path.is_file() and path not in known:
            yield f"{path.relative_to(root)}: in no room of CMakeLists.txt"
    for room, path in sources:
        where = path.relative_to(root)
        for bracket, header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if header.startswith("strata/"):
                other = header.split("/")[1]
                if other != room and other not in rooms[room]:
                    yield f"{where}: includes {header}, but {other} is not in {room}'s DEPENDS"
                if not (root / "include" / header).is_file():
                    yield f"{where}: includes {header}, which does not exist"
            if bracket == '"' and (not header.startswith("strata/") or header.split("/")[1] == room):
                including = owners[room].get(str(path.relative_to(root / "include"))) if path.is_relative_to(
                    root / "include") else path
                for problem in floor_problems(including, header, room, directory_of(root, room), owners[room]) if including else ():
                    yield f"{where}: {problem}"
            for pattern, owner in OWNERS.items():
                if room != owner and re.fullmatch(pattern, header):
                    yield f"{where}: includes {header}, which only {owner} may"


def replication_problems(root):
    """Lines that name a kind of replication outside its modules, where there are too many."""
    found = [f"{path.relative_to(root)}:{number}: names a kind of replication: {line.strip()}"
             for folder in ("src", "include", "io") for path in sorted((root / folder).rglob("*.[chi]*"))
             if not REPLICATION.match(str(path.relative_to(root)))
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if KINDS.search(line)]
    return found if len(found) > MOST_LINES_OF_KINDS else []


def self_check():
    """The problems that this script looks for are found in texts that have them."""
    rooms = declared_rooms("strata_room(core DEPENDS LIBRARIES fmt::fmt)\n"
                           "strata_room(grid DEPENDS core comm CUDA)\n"
                           "strata_room(attic DEPENDS core)\n")
    assert rooms == {"core": set(), "grid": {"core", "comm"}, "attic": {"core"}}, rooms
    assert len(list(declaration_problems(rooms))) == 2
    assert all(map(KINDS.search, ("grid.islands", "config.async.ahead", "kAsync", "// Asynchronous workers")))
    assert not any(map(KINDS.search, ("std::async(x)", "cp.async.wait_all", "copies asynchronously")))
    assert INCLUDE.findall('#include <mpi.h>\n  # include "strata/io/a.hpp"\n// include <b.h>') == [
        ("<", "mpi.h"), ('"', "strata/io/a.hpp")]


def mutant_problems(root):
    """Faults of tests/mutants that can no longer be put in."""
    sys.path.insert(0, str(root / "tests/mutants"))
    sys.dont_write_bytecode = True
    from mutants import MUTANTS
    return [f"{mutant.file}: the text of the mutant {mutant.name} does not occur once" for mutant in MUTANTS
            if (root / mutant.file).read_text().count(mutant.old) != 1]


def main():
    self_check()
    root = pathlib.Path(sys.argv[1])
    rooms = declared_rooms((root / "CMakeLists.txt").read_text(encoding="utf-8"))
    missing = {path.name for path in (root / "src").iterdir() if path.is_dir()} - set(rooms)
    problems = [f"src/{room}: no strata_room() declares it" for room in sorted(missing)]
    problems += declaration_problems(rooms)
    problems += file_problems(root, rooms)
    problems += replication_problems(root)
    problems += mutant_problems(root)
    for problem in problems:
        print(problem)
    print(f"{len(rooms)} rooms, {len(problems)} problems")
    return 1 if problems or not rooms else 0


sys.exit(main())
