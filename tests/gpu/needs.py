"""Whether a Python has what the tests on a GPU need: python tests/gpu/needs.py. Exit 3 when it has not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

# Module: the package that has it, and what it is for.
NEEDED = {
    "cupy": ("cupy-cuda13x", "launching"),
    "numpy": ("numpy", "CuPy needs it"),
    "pytest": ("pytest", "running the tests"),
    "portalocker": ("portalocker", "the store"),
    "msgspec": ("msgspec", "the store"),
    "xxhash": ("xxhash", "the store"),
    "zstandard": ("zstandard", "the store"),
    "platformdirs": ("platformdirs", "the store's default place"),
    "click": ("click", "the command line"),
}
OPTIONAL = {"triton": "the triton family", "torch": "matmul with PyTorch's arrays", "rich": "progress bars"}
# What a machine without a network can be given: small, and the same for every GPU.
CARRIED = ("portalocker", "msgspec", "xxhash", "zstandard", "platformdirs", "click", "pytest")
CUOBJDUMP = "nvidia-cuda-cuobjdump"
FOLDER = ".gpu-packages"


def _for_this_driver(package: str) -> str:
    """What pip calls a package for the driver's version of CUDA."""
    from cache_engine.gpu.probe import gpu_extra

    names = {"cupy-cuda13x": "cupy-cuda12x", "nvidia-cublas": "nvidia-cublas-cu12"}
    return names.get(package, package) if gpu_extra() == "cuda12" else package


def _toolkit() -> Iterator[tuple[str, str]]:
    """Packages with what of the CUDA toolkit is needed and not here, neither from PyPI nor the system's."""
    from cache_engine.compilers import COMPILERS
    from cache_engine.compilers.contents import cuda_for, find_tool
    from cache_engine.errors import NotHereError
    from cache_engine.gpu.probe import driver_cuda, gpu, local_arch

    cuda = cuda_for("auto", driver_cuda(), local_arch() or "")
    try:
        COMPILERS["nvrtc"].of_cuda(cuda).load()
    except NotHereError as error:
        yield "nvidia-cuda-nvrtc" if 13 in cuda.versions else "'nvidia-cuda-nvrtc-cu12>=12.9'", str(error)
    try:
        find_tool("cuobjdump", CUOBJDUMP)
    except NotHereError as error:
        yield CUOBJDUMP, str(error)
    if not isinstance(gpu(), str):
        try:
            from cupy.cuda import cublas  # noqa: F401 (whether it is found is the question)
        except ImportError as error:
            yield _for_this_driver("nvidia-cublas"), f"cuBLAS is not found: {error}"


def main() -> int:
    """Prints what is missing and what to do about it."""
    missing = {name: why for name, (_, why) in NEEDED.items() if find_spec(name) is None}
    packages = [_for_this_driver(NEEDED[name][0]) for name in missing]
    if not missing:
        for package, trouble in _toolkit():
            missing[package] = trouble
            packages.append(package)
    for name in (name for name in OPTIONAL if find_spec(name) is None):
        print(f"not here, and left out: {name}, for {OPTIONAL[name]}", file=sys.stderr)
    if not missing:
        return 0
    print(f"{sys.executable} lacks what the tests on a GPU need:", file=sys.stderr)
    for name, why in missing.items():
        print(f"  {name}: {why}", file=sys.stderr)
    small = [package for package in packages if package in (*CARRIED, CUOBJDUMP)]
    print(f"Where there is a network: {sys.executable} -m pip install {' '.join(packages)}", file=sys.stderr)
    if small:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        print(
            f"Where there is none, on another machine: make gpu-packages GPU_PYTHON_VERSION={version}\n"
            f"and copy the folder {FOLDER} into this checkout; it brings {', '.join(small)}",
            file=sys.stderr,
        )
    return 3


if __name__ == "__main__":
    sys.exit(main())
