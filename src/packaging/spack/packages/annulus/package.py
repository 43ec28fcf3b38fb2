# Spack's recipe of Annulus. It was read by Python and never run by Spack: this project's machines do not reach Spack's sources.
#
#   spack repo add src/packaging/spack           # in a clone, of which the commit that is checked out is built
#   spack install annulus +cuda cuda_arch=90 +nccl

import pathlib

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.rocm import ROCmPackage

from spack.package import *


class Annulus(CMakePackage, CudaPackage, ROCmPackage):
    """Exact distributed attention, and training, for sequences that no single device holds."""

    git = pathlib.Path(__file__).resolve().parents[5].as_uri()

    license("Apache-2.0")

    version("main", branch="main")

    variant("nccl", default=True, description="Exchange between GPUs over NCCL or RCCL, and not over MPI alone")
    variant("tests", default=False, description="Build the tests")
    variant("programs", default=True, description="Build training and the programs, and not the library of attention alone")

    # Compute capabilities that src/cmake/Cuda.cmake knows, and GPUs that src/cmake/Hip.cmake knows.
    cuda_known = ("70", "75", "80", "86", "89", "90", "100", "120")
    rocm_known = ("gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3:", type="build")  # manual pages
    depends_on("mpi")
    depends_on("fmt")
    depends_on("kokkos@5: +openmp +serial")
    with when("+programs"):
        depends_on("kokkos-kernels@5: +blas")
        depends_on("openblas threads=openmp")
        depends_on("cli11")
        depends_on("hwloc@2.1:")
        depends_on("nlohmann-json@3.10:")
        depends_on("sentencepiece")
        depends_on("spdlog")
        depends_on("tomlplusplus")
        depends_on("zlib-api")
    with when("+tests"):
        depends_on("googletest +gmock")
        depends_on("hdf5", when="+programs")

    depends_on("cuda@12.4:", when="+cuda")
    depends_on("nccl", when="+cuda +nccl")
    depends_on("hip@6.2:", when="+rocm")
    depends_on("hipblas@2:", when="+rocm +programs")
    depends_on("rccl@6:", when="+rocm +nccl")
    for arch in cuda_known:
        depends_on(f"kokkos +cuda cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
    for target in rocm_known:
        depends_on(f"kokkos +rocm amdgpu_target={target}", when=f"+rocm amdgpu_target={target}")

    conflicts("+cuda", when="+rocm", msg="a build has GPUs of one kind")
    conflicts("cuda_arch=none", when="+cuda", msg="cuda_arch says which GPUs the kernels are for (90 for an H100)")
    conflicts("amdgpu_target=none", when="+rocm", msg="amdgpu_target says which GPU the kernels are for (gfx942 for an MI300)")

    generator("ninja")

    def cmake_args(self):
        spec = self.spec
        args = [
            self.define("ANNULUS_NATIVE", False),  # Spack's compilers say for which processor
            self.define_from_variant("ANNULUS_TESTS", "tests"),
            self.define_from_variant("ANNULUS_PREDICTION", "programs"),
            self.define_from_variant("ANNULUS_CUDA", "cuda"),
            self.define_from_variant("ANNULUS_HIP", "rocm"),
        ]
        if spec.satisfies("+programs"):
            args.append(self.define("ANNULUS_KOKKOS_KERNELS", "installed"))
        if spec.satisfies("+cuda"):
            args.append(self.define("ANNULUS_CUDA_ARCHITECTURE", ";".join(spec.variants["cuda_arch"].value)))
        if spec.satisfies("+rocm"):
            targets = spec.variants["amdgpu_target"].value
            if len(targets) != 1:
                raise InstallError("annulus: a build is for one AMD GPU: give one amdgpu_target")
            args += [self.define("ANNULUS_HIP_ARCHITECTURE", targets[0]),
                     self.define("CMAKE_CXX_COMPILER", spec["llvm-amdgpu"].prefix.bin.join("amdclang++"))]
        if not spec.satisfies("+nccl"):  # a name that is no file keeps CMake from looking
            args += [self.define("ANNULUS_NCCL_INCLUDE", "OFF"), self.define("ANNULUS_NCCL_LIBRARY", "OFF")]
        return args
