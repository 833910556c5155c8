"""Spack's recipe for strata, built from the repository that holds this file:

    spack repo add packaging/spack/spack_repo/strata
    spack install strata +cuda +nccl cuda_arch=80,90
"""

import pathlib

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Strata(CMakePackage, CudaPackage):
    """Trains neural networks on Slurm clusters: MPI ranks in a data x pipeline x tensor grid."""

    git = f"file://{pathlib.Path(__file__).resolve().parents[6]}"

    version("main", branch="main")

    variant("nccl", default=True, when="+cuda", description="Messages between GPUs by NCCL")
    variant("cudnn", default=True, when="+cuda", description="Convolution and attention by cuDNN")
    variant("tests", default=False, description="Build the tests")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    generator("ninja")

    depends_on("mpi")  # openmpi, mpich, or what has the ABI of one
    depends_on("hdf5@1.10: ~mpi +threadsafe")
    depends_on("onednn@2.5:3 cpu_runtime=omp")
    depends_on("random123")
    depends_on("xxhash")
    depends_on("openssl")
    depends_on("fmt@9:")
    depends_on("nlohmann-json")
    depends_on("hwloc")
    depends_on("utf8proc")
    depends_on("pcre2@10.40: +jit")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("sentencepiece")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl", when="+nccl")
    depends_on("cudnn@9:", when="+cudnn")
    depends_on("googletest +gmock", when="+tests")

    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs, as in cuda_arch=80,90")
    conflicts("%gcc@:11", msg="strata needs C++20")
    conflicts("^openmpi@:3", msg="strata knows the launchers of Open MPI 4 and 5, and of MPICH")

    def cmake_args(self):
        args = [
            self.define_from_variant("STRATA_CUDA", "cuda"),
            self.define_from_variant("STRATA_TESTS", "tests"),
            self.define("STRATA_BENCH", False),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args
