"""What the last line of a PyTorch whose import fails means."""

from __future__ import annotations

_TOOLKIT = (
    "libraries of another CUDA, or of another cuDNN or NCCL, are found before those it brings",
    (
        "unset LD_LIBRARY_PATH; else pip list | grep nvidia-, take out those of another CUDA, and"
        " pip install --force-reinstall torch"
    ),
)
CAUSES = (
    (
        r"No module named '?encodings",
        "PYTHONHOME or PYTHONPATH names another Python's library",
        "unset PYTHONHOME PYTHONPATH; where a module sets them: module unload it",
    ),
    (
        (
            r"undefined symbol: (?:__)?(?:nvJitLink|cublas|cudnn|cufft|cupti|curand|cusolver"
            r"|cusparse|nccl|nvrtc|nvshmem|cuda)"
        ),
        *_TOOLKIT,
    ),
    (r"version lib(?:cu|nv|nccl)\S+ not defined in file", *_TOOLKIT),
    (
        r"libcuda\.so\.1: cannot open",
        "that library is the driver's, and is not found",
        "see the row `driver`; in a container: docker run --gpus all",
    ),
    (
        r"libstdc\+\+\.so\.6: cannot open",
        "the C++ library is not found: on NixOS what pip installs finds none of the system's",
        (
            "NixOS: LD_LIBRARY_PATH (in a shell.nix) with stdenv.cc.cc.lib and zlib, or"
            " programs.nix-ld, or nixpkgs' own torch; elsewhere: install libstdc++6"
        ),
    ),
    (
        r"libcusparseLt\S*: cannot open",
        "NVIDIA's cuSPARSELt, which it was built with, is not installed",
        (
            "pip install --force-reinstall torch; on a Jetson, whose wheel does not bring it: sudo"
            " apt-get install libcusparselt0 (or -dev), of NVIDIA's repository"
        ),
    ),
    (
        r"libmpi\S*: cannot open",
        "Open MPI, which it was built with, is not installed",
        "sudo apt-get install libopenmpi-dev openmpi-bin",
    ),
    (r"libcud(?:nn|art)\S*: (?:undefined symbol|version)", *_TOOLKIT),
    (
        r"cuDNN version incompat|Could not load library libcud|libcudnn\S*: version mismatch",
        *_TOOLKIT,
    ),
    (
        r"libcudss\S*: cannot open",
        "NVIDIA's sparse solver (cuDSS), which it was built with, is not installed",
        (
            "sudo apt-get install cudss   # of NVIDIA's repository, as on a Jetson; or pip install"
            " nvidia-cudss-cu12, or -cu13"
        ),
    ),
    (
        r"lib(openblas|lapack|nvpl\w*)\S*: cannot open",
        "the system's lib{0}, which it was built with, is not installed",
        (
            "sudo apt-get install libopenblas-dev liblapack-dev; of NVIDIA's: pip install nvpl-blas"
            " nvpl-lapack"
        ),
    ),
    (
        r"lib(?:cu|nv|nccl)\S*: cannot open shared object file: No such file",
        "a library of CUDA that belongs to it is not installed",
        "pip install --force-reinstall torch   # brings its nvidia- packages",
    ),
    (
        r"undefined symbol: iJIT_",
        "conda's newer MKL does not fit it",
        "conda install 'mkl<2024.1'",
    ),
    (
        r"(\S+): cannot allocate memory in static TLS block",
        "that library is loaded too late",
        "export LD_PRELOAD={0}",
    ),
    (
        r"(\S+): version .(?:GLIBCXX|CXXABI)_[\d.]+. not found",
        "the C++ library that is found first, {0}, is older than it wants",
        (
            "in conda: conda install -c conda-forge libstdcxx-ng, and"
            " LD_LIBRARY_PATH=$CONDA_PREFIX/lib;"
            " else a newer system, or a container"
        ),
    ),
    (
        r"version .GLIBC_([\d.]+). not found",
        "the system's C library is older than {0}",
        "a newer system, or a container: make train ENGINE=docker",
    ),
    (
        r"Error relocating \S+: \S+ symbol not found",
        "this system has musl in place of glibc, as Alpine has, and no PyTorch is built for that",
        "take an image, or a system, with glibc: Debian, Ubuntu, Fedora",
    ),
    (
        r"UnsupportedDigestmodError",
        "this system allows no MD5 (FIPS), for which it asks",
        "a newer PyTorch; or a system without FIPS",
    ),
    (
        r"libcublas\.so\.\S* not found in the system path",
        "the nvidia- packages that belong to it are not installed",
        "pip install --force-reinstall torch; with poetry: another release than 2.0.1 and 2.1.0",
    ),
    (
        r"cannot enable executable stack as shared object requires: Permission",
        "SELinux lets no program have an executable stack, for which one of its files asks",
        "patchelf --clear-execstack on that file; or take a newer PyTorch",
    ),
    (
        r"(\S+): cannot enable executable stack",
        "the system's C library (2.41 or newer) does not load what asks for an executable stack",
        "take a newer PyTorch; or patchelf --clear-execstack on that file ({0})",
    ),
    (
        (
            r"failed to map segment from shared object"
            r"|cannot open shared object file: Operation not permitted"
        ),
        (
            "its folder is mounted noexec, fapolicyd does not trust its files, or a limit of"
            " address space (ulimit -v) is too small"
        ),
        (
            "install it on another file system; where fapolicyd runs: sudo fapolicyd-cli --file add"
            " FOLDER/ --trust-file venv && sudo fapolicyd-cli --update; or ulimit -v unlimited"
        ),
    ),
    (
        r"getpwuid\(\): uid not found",
        "this user has no name in this container",
        "start it with -e USER=me -e TORCHINDUCTOR_CACHE_DIR=/tmp/inductor",
    ),
    (
        r"No usable temporary directory",
        "there is no folder for temporary files that may be written and has room",
        "make room in /tmp (sudo chmod 1777 /tmp), or export TMPDIR= a folder that may be written",
    ),
    (
        r"No module named '(_\w+)'",
        "this python was built without {0}",
        (
            "install the library's headers (liblzma-dev, libffi-dev, libbz2-dev), and"
            " build that python again; or take the system's"
        ),
    ),
    (
        (
            r"No module named 'torch\._C'|partially initialized module 'torch'"
            r"|Failed to load PyTorch C extensions"
            r"|module 'torch' has no attribute '(?:__version__|version|backends)'"
        ),
        "a folder or a file called torch is found before the installed one",
        "run python in another folder, or rename that one; else install torch anew",
    ),
    (
        r"circular import|consider renaming|partially initialized module '(?!torch)",
        "a file of one's own has the name of a module, and is found in its place",
        "run python in another folder, or rename that file",
    ),
    (
        r"(?:from|module) '(typing_extensions|sympy|mpmath)'(?: \(| has no attribute)",
        "a package that it imports is of a release that does not fit it: {0}",
        (
            "unset PYTHONPATH, which may put another Python's first; pip install --upgrade"
            " typing_extensions sympy 'mpmath<1.4'; or an environment of its own"
        ),
    ),
    (
        r"module 'numpy' has no attribute|from '(?:collections|typing)'",
        "it, or its NumPy, is not made for this Python or this NumPy",
        "a newer PyTorch; or an environment of its own, with what it was made for",
    ),
    (
        r"No module named '(?:distutils|imp|asyncore)'",
        "Python 3.12 and newer do not have that module any more",
        "pip install setuptools; or a newer PyTorch",
    ),
    (
        r"No module named 'pkg_resources'",
        "setuptools 82 and newer have no pkg_resources",
        "pip install 'setuptools<82'",
    ),
    (
        r"No module named '(?!torch\b)([a-z]\w*)'",
        "a package that it imports is not installed: {0}",
        "pip install {0}   # or what the package is called that has it",
    ),
    (
        r"[Ii]nvalid ELF header|file too short|Input/output error|Bus error",
        "a file of it is damaged, or its disk cannot be read",
        "df -h; sudo dmesg | grep -i error; pip install --force-reinstall --no-cache-dir torch",
    ),
    (
        r"Permission denied",
        "a file of it may not be read by this user",
        "sudo chmod -R a+rX its folder; or install it again as this user",
    ),
)
"""Sign; why; what helps. The first that fits counts."""
