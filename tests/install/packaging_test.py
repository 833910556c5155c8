"""The recipes of packaging/ as far as they can be read without their tools: fields, options of CMake, libraries.

Usage: packaging_test.py SOURCE_DIR
"""

import importlib.util
import pathlib
import re
import sys
import types
import unittest

SOURCE = pathlib.Path(sys.argv[1])
PACKAGING = SOURCE / "packaging"
CMAKE = "".join(path.read_text() for path in [SOURCE / "CMakeLists.txt", *SOURCE.glob("cmake/*.cmake")])
VERSION = re.search(r"project\(strata VERSION (\S+)", CMAKE)[1]
# Debian's development packages of the libraries, and the names of Spack and EasyBuild; empty: part of something else, or optional.
LIBRARIES = {
    "libopenmpi-dev": ("mpi", ""), "libhdf5-dev": ("hdf5", "HDF5"), "zlib1g-dev": ("zlib-api", "zlib"),
    "libdnnl-dev": ("onednn", "oneDNN"), "librandom123-dev": ("random123", "Random123"), "libxxhash-dev": ("xxhash", "xxHash"),
    "libssl-dev": ("openssl", "OpenSSL"),
    "libfmt-dev": ("fmt", "fmt"), "nlohmann-json3-dev": ("nlohmann-json", "nlohmann_json"),
    "libhwloc-dev": ("hwloc", "hwloc"), "libutf8proc-dev": ("utf8proc", "utf8proc"), "libpcre2-dev": ("pcre2", "PCRE2"),
    "libturbojpeg0-dev": ("libjpeg-turbo", "libjpeg-turbo"), "libpng-dev": ("libpng", "libpng"), "libzstd-dev": ("zstd", "zstd"),
    "libsentencepiece-dev": ("sentencepiece", ""),
}


# Versions of Spack's names that tests ran with: those of Debian 12 and 13.
TESTED = {"openmpi": ("4.1.4", "5.0.7"), "mpich": ("4.0.2",), "hdf5": ("1.10.8", "1.14.5"), "onednn": ("2.6.3", "3.7.2"),
          "fmt": ("9.1.0", "10.1.1"), "pcre2": ("10.42", "10.46"), "cmake": ("3.25.1", "3.31.6"), "gcc": ("12.2.0", "14.2.0")}


def holds(spec, version):
    """Whether a specification such as "hdf5@1.10: ~mpi" or "%gcc@:11" takes a version."""
    ranges = re.match(r"[%^]?[\w-]+(?:@([\d.:,]+))?", spec)[1]
    number = lambda text: tuple(map(int, text.split(".")))
    for bounds in (ranges or ":").split(","):
        low, _, high = bounds.partition(":") if ":" in bounds else (bounds, "", bounds)
        if (not low or number(version) >= number(low)) and (not high or number(version)[:len(number(high))] <= number(high)):
            return True
    return False


def read_spack(variants):
    """The class of package.py under stand-ins for Spack's modules, and what it declares."""
    declared = {"depends_on": [], "variant": [], "version": [], "conflicts": [], "generator": []}
    package = types.ModuleType("spack.package")
    for name, calls in declared.items():
        setattr(package, name, lambda *values, calls=calls, **_: calls.append(values[0]))
    spec = types.SimpleNamespace(satisfies=lambda text: variants[text.strip("+")],
                                 variants={"cuda_arch": types.SimpleNamespace(value=("80", "90"))})
    base = type("CMakePackage", (), {
        "spec": spec, "define": lambda self, name, value: (name, value),
        "define_from_variant": lambda self, name, variant: (name, variants[variant])})
    modules = {"spack": types.ModuleType("spack"), "spack.package": package}
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        modules[name] = types.ModuleType(name)
    for file, name in [("cmake", "CMakePackage"), ("cuda", "CudaPackage")]:
        module = modules[f"spack_repo.builtin.build_systems.{file}"] = types.ModuleType(file)
        setattr(module, name, base if name == "CMakePackage" else type(name, (), {}))
    sys.modules.update(modules)
    path, = PACKAGING.rglob("package.py")
    loaded = importlib.util.spec_from_file_location("strata_package", path)
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module.Strata(), declared


class PackagingTest(unittest.TestCase):
    def setUp(self):
        packages = re.search(r"^packages=\((.*?)\)", (SOURCE / "jobs/setup/install-packages.sh").read_text(), re.M | re.S)[1]
        self.assertEqual({name for name in packages.split() if name.endswith("-dev")}, set(LIBRARIES), "update LIBRARIES")

    def test_spack(self):
        for cuda in (False, True):
            recipe, declared = read_spack({"cuda": cuda, "tests": True})
            arguments = dict(recipe.cmake_args())
            self.assertEqual((arguments["STRATA_CUDA"], arguments["STRATA_TESTS"], arguments["STRATA_BENCH"]), (cuda, True, False))
            self.assertEqual("CMAKE_CUDA_ARCHITECTURES" in arguments, cuda)
            for name in arguments:
                self.assertIn(name, CMAKE)
        wanted = {re.match(r"[\w-]+", spec)[0]: spec for spec in declared["depends_on"]}
        self.assertLessEqual({spack for spack, _ in LIBRARIES.values()}, set(wanted))
        for name, versions in TESTED.items():
            for version in versions:
                self.assertTrue(holds(wanted.get(name, name), version), f"{name} {version}")
                refused = [spec for spec in declared["conflicts"] if re.match(rf"[%^]{name}@", spec) and holds(spec, version)]
                self.assertEqual(refused, [], f"{name} {version}")
        for spec in ("%gcc@:11", "^openmpi@:3"):
            self.assertIn(spec, declared["conflicts"])
        self.assertFalse(holds(wanted["onednn"], "2.4") or holds(wanted["fmt"], "8.1.1"))
        self.assertEqual(declared["variant"], ["nccl", "cudnn", "tests"])
        self.assertEqual(recipe.git, f"file://{SOURCE.resolve()}")

    def test_easybuild(self):
        path, = PACKAGING.glob("easybuild/*.eb")
        easyconfig = {"SYSTEM": "system"}  # a constant of EasyBuild, a toolchain
        exec(compile(path.read_text(), path, "exec"), easyconfig)  # pylint: disable=exec-used
        # Source: "Available easyconfig parameters" of EasyBuild's documentation, those that are mandatory.
        for parameter in ("name", "version", "homepage", "description", "toolchain"):
            self.assertTrue(easyconfig[parameter], parameter)
        toolchain = easyconfig["toolchain"]
        self.assertEqual(path.name, f"strata-{VERSION}-{toolchain['name']}-{toolchain['version']}.eb")
        self.assertEqual(easyconfig["version"], VERSION)
        names = [entry[0] for entry in
                 easyconfig["dependencies"] + easyconfig["builddependencies"] + easyconfig["components"]]
        self.assertLessEqual({name for _, name in LIBRARIES.values() if name}, set(names))
        self.assertEqual(names[-1], "strata", "it is built when its libraries are there")
        for option in re.findall(r"-D(STRATA_\w+)=", easyconfig["components"][-1][2]["configopts"]):
            self.assertIn(option, CMAKE)

    def test_containers(self):
        docker = (PACKAGING / "Dockerfile").read_text()
        apptainer = (PACKAGING / "strata.def").read_text()
        self.assertEqual(re.findall(r"^(?:FROM|COPY|RUN|ARG|WORKDIR|ENTRYPOINT)\b", docker, re.M).count("FROM"), 2)
        self.assertEqual(re.findall(r"^(?:Bootstrap|From|Stage): (.+)", apptainer, re.M),
                         ["docker", "debian:12", "build", "docker", "debian:12", "final"])
        self.assertEqual(re.findall(r"^%(\w+)", apptainer, re.M),
                         ["files", "post", "files", "post", "runscript", "test", "help"])
        for text in (docker, apptainer):
            for option in re.findall(r"-D(\w+)=", text):
                self.assertIn(option, CMAKE)
            for path in re.findall(r"\bjobs/setup/\S+\.sh", text):
                self.assertTrue((SOURCE / path).exists(), path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
