# Spack recipe. To use it: a repository with this file as packages/flotilla/package.py (spack repo create, spack repo add),
# then from the root of the sources: spack dev-build flotilla@main
# LibTorch is taken from Spack's py-torch, whose version must be the one that Flotilla is written for.
import os

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Flotilla(CMakePackage, CudaPackage):
    """Generates video with sound from text and images with the LTX-2 family of models, as one MPI job."""

    license("Apache-2.0")

    version("main")

    variant("tests", default=False, description="Build the tests")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.24:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3:", type=("build", "run"))

    depends_on("py-torch@2.11")
    depends_on("py-torch+cuda", when="+cuda")
    depends_on("openmpi@4:")
    depends_on("hdf5@1.10: ~mpi")
    depends_on("yaml-cpp@0.7:")
    depends_on("nlohmann-json@3:")
    depends_on("sentencepiece")
    depends_on("boost+program_options")
    depends_on("libpng")
    depends_on("jpeg")
    depends_on("libwebp")
    depends_on("googletest@1.12: +gmock", when="+tests")
    depends_on("ffmpeg+libx264", type="run")
    depends_on("cuda@12.8:", when="+cuda")
    depends_on("nccl", when="+cuda")

    conflicts("%gcc@:11", msg="C++20 as Flotilla uses it needs GCC 12 or newer")

    generator("ninja")

    def cmake_args(self):
        site_packages = os.path.join(self.spec["py-torch"].prefix, self.spec["python"].package.platlib)
        args = [
            self.define("FLOTILLA_TORCH_ROOT", os.path.join(site_packages, "torch")),
            self.define_from_variant("FLOTILLA_CUDA", "cuda"),
            self.define_from_variant("FLOTILLA_TESTS", "tests"),
        ]
        archs = self.spec.variants["cuda_arch"].value if self.spec.satisfies("+cuda") else ("none",)
        if archs != ("none",):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", list(archs)))
        return args

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.flotilla)("--version")
