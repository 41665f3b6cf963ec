"""The numbers of CUDA's errors, what each means, and what helps."""

# CUDA's error numbers as torch prints them, what each means, and what helps.
# https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
ERRORS = {
    "2": (
        "a GPU's memory is full before anything was computed: other programs hold it",
        "nvidia-smi   # who is there; GPUS=free takes another one",
    ),
    "3": (
        "CUDA does not start, though the driver answers: mostly the module for its memory",
        (
            "ls -l /dev/nvidia-uvm   # in a container: --gpus all; else sudo modprobe -r nvidia_uvm"
            " && sudo modprobe nvidia_uvm; if it stays, with open modules: options nvidia_uvm"
            " uvm_disable_hmm=1 in /etc/modprobe.d, and reboot"
        ),
    ),
    "34": (
        "a CUDA toolkit's stub is found in the place of the driver's libcuda",
        "take that folder (stubs) out of LD_LIBRARY_PATH",
    ),
    "36": (
        "this torch asks the driver for what only a newer one does",
        "CUDA=auto make train, or upgrade the driver",
    ),
    "209": (
        "this torch has no kernels for this GPU",
        "CUDA=auto make train, or hide it with CUDA_VISIBLE_DEVICES",
    ),
    "214": (
        "an error in the GPU's memory that could not be corrected",
        "sudo nvidia-smi --gpu-reset; if it comes back, have the GPU replaced",
    ),
    "304": (
        "the system does not let CUDA open its devices",
        "sudo modprobe nvidia_uvm; ls -l /dev/nvidia*; in a container: --gpus all",
    ),
    "500": (
        "libcuda is not of the driver's version; under WSL, the toolkit is too old for the driver",
        "update nvidia-container-toolkit, Docker Desktop, WSL (wsl --update); else sudo ldconfig",
    ),
    "807": (
        "NVIDIA's MPS takes no new program: it serves another user, or is stuck",
        (
            "echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d   # or unset"
            " CUDA_MPS_PIPE_DIRECTORY"
        ),
    ),
    "805": (
        "CUDA is told to go through MPS, whose daemon does not answer",
        "nvidia-cuda-mps-control -d   # or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    "802": (
        "the switch between the GPUs is not up: no fabric manager, or one of another version",
        (
            "install nvidia-fabricmanager of the driver's very version where there is none, and"
            " sudo systemctl enable --now nvidia-fabricmanager; then nvidia-smi -q | grep -A2"
            " Fabric; in a confidential machine: sudo nvidia-smi conf-compute -srs 1"
        ),
    ),
    "803": (
        "libcuda is not of the driver's version: it was upgraded, or another one is found first",
        "sudo reboot; or unset LD_LIBRARY_PATH, and remove cuda-compat-* from host or image",
    ),
    "804": (
        "a forward-compatibility libcuda hides the driver's own; it works on data centre GPUs only",
        "sudo apt-get remove 'cuda-compat-*'; in an image: rm -rf /usr/local/cuda*/compat",
    ),
    "100": (
        "no GPU is left for this process",
        "unset CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all, or make train",
    ),
    "101": (
        "CUDA_VISIBLE_DEVICES names a GPU that is not there, or one twice",
        "nvidia-smi -L; unset CUDA_VISIBLE_DEVICES",
    ),
    "46": (
        "a GPU is set aside for one process, waits for a reset, has no MIG instance, or no licence",
        "nvidia-smi -q -d COMPUTE; sudo nvidia-smi -c DEFAULT; make doctor says of a reset",
    ),
    "999": (
        "the module for CUDA's memory lost its devices, as after suspend",
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm (a container's host), or reboot",
    ),
}
# Before what CUDA says torch puts a question of its own.
