"""clang-tidy on sources: tidy.py BUILD SOURCE...

The changed sources of a room are read as one file, which parses their headers once. Where they do not compile together, each
is read as the build compiles it. BUILD has compile_commands.json. Exit code 1 where there are findings, which are printed.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys


def main(build, *sources):
    root = pathlib.Path(__file__).resolve().parents[1]
    build = pathlib.Path(build).resolve()
    units = {}  # the build's file by each source that it compiles
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        commands[file] = entry
        if file.suffix == ".cxx":
            units.update((pathlib.Path(name), file) for name in re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE))
        else:
            units[file] = file

    def tidied(file, directory, names):
        lines = json.dumps([{"name": str(name)} for name in names])
        return subprocess.run(["clang-tidy", "--quiet", "-p", directory, f"--line-filter={lines}", file], capture_output=True,
                              text=True, cwd=root)

    def findings(room, names):
        """Of sources of a room."""
        directory = build / "tidy" / room
        directory.mkdir(parents=True, exist_ok=True)
        joined = directory / "joined.cxx"
        joined.write_text("".join(f'#include "{name}"\n' for name in names))
        entry = commands[units[names[0]]]
        words = [str(joined) if word == entry["file"] else word for word in shlex.split(entry["command"])]
        (directory / "compile_commands.json").write_text(
            json.dumps([{"directory": entry["directory"], "file": str(joined), "arguments": words}]))
        finished = [tidied(joined, directory, names)]
        if finished[0].returncode != 0:
            alone = sorted({units[name] for name in names})
            finished = [tidied(file, build, names) for file in alone]
        return [done.stdout + done.stderr for done in finished if done.returncode != 0]

    rooms = {}
    for source in sources:
        path = root / source
        if path in units:  # else this build leaves it out
            room = "io" if source.startswith("io/") else source.split("/")[1]
            rooms.setdefault(room, []).append(path)
    rooms = dict(sorted(rooms.items(), key=lambda room: -len(room[1])))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = sum(pool.map(findings, rooms.keys(), rooms.values()), [])
    lines = {line for text in texts for line in text.splitlines() if re.search("(warning|error):", line)}
    for line in sorted(lines)[:40] or [text[-2000:] for text in texts]:
        print(line)
    return 1 if texts else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
