"""What a container says that does not see the GPUs: sign, what it means, what helps."""

from __future__ import annotations

from doctor.configured import CONFIG, NO_CGROUPS, UNASKED
from doctor.imagestore import LARGER_DISK

UNSEEN = (
    (
        r"file creation failed: .*file exists",
        "the image itself holds files of the driver, where the toolkit puts the host's",
        (
            "make the image anew without them: RUN rm -f /usr/lib/*-linux-gnu/libcuda.so.1"
            " /usr/lib/*-linux-gnu/libnvidia-ml.so.1; build with runc, not with the nvidia runtime,"
            " and not by docker commit"
        ),
    ),
    (
        r"detection error: nvml error: unknown error",
        "the driver does not answer for one of the GPUs, and the toolkit asks for all",
        "mend what the rows above say of it; where that is a lost GPU, power it off and on",
    ),
    (
        r"unknown flag: --gpus",
        "this Docker is older than 19.03, the first that hands over GPUs by --gpus",
        "update Docker Engine; or ENGINE=local",
    ),
    (
        r"invalid config value|ldconfig.*must be host-relative",
        "the toolkit does not take a value of its configuration: an ldconfig without an @",
        (
            "sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@/sbin/ldconfig"
            " (in /etc/nvidia-container-runtime/config.toml), and sudo systemctl restart docker"
        ),
    ),
    (
        "no space left on device",
        "the engine's disk is full",
        LARGER_DISK,
    ),
    (
        (
            r"apparmor failed to apply profile|unable to apply apparmor profile"
            r"|docker-default profile could not be loaded"
            r"|if docker-default apparmor profile was loaded"
        ),
        "the kernel does not let the engine set AppArmor's profile, as in an LXC container",
        (
            "in the LXC container's configuration on the host: lxc.mount.entry: /dev/null"
            " sys/module/apparmor/parameters/enabled none bind 0 0, then start it anew; or"
            " ENGINE=local"
        ),
    ),
    (
        r"\brunsc\b",
        "gVisor (runsc) starts the containers, and passes no GPU on",
        (
            'in daemon.json "runtimeArgs": ["--nvproxy=true"] for runsc, or another'
            ' "default-runtime", and sudo systemctl restart docker; or docker run --runtime nvidia'
        ),
    ),
    (
        r'error mounting .?"?proc"? to rootfs at "?/proc"?.*permission denied',
        "the engine runs in LXC, which lets it start no containers of its own (nesting)",
        (
            "on the host: incus (lxc) config set NAME security.nesting=true, Proxmox: pct set ID"
            " --features nesting=1,keyctl=1; then start that container anew; or ENGINE=local"
        ),
    ),
    (
        r"detection error: open failed: \S*lib(?:nvidia|cuda)",
        "the system's list of libraries names files of a driver that was here before",
        "remove what that driver left (that file's links, its packages), and sudo ldconfig",
    ),
    ("mismatch", "the driver was upgraded under the engine", "sudo reboot"),
    (
        r"open sysctl net\S* file.*permission denied|reopen fd \d+: permission denied",
        "in an LXC container runc 1.3.3 and newer may not write the kernel's settings",
        (
            "in the LXC container's configuration on the host: lxc.apparmor.profile: unconfined,"
            " and start it anew; or an older containerd.io (1.7.28-1); or ENGINE=local"
        ),
    ),
    (
        r"ldconfig (?:terminated with|failed with) signal 9",
        "the system's ldconfig is killed as the toolkit runs it in the container (its old hook)",
        (
            "a newer nvidia-container-toolkit (1.18 or newer), or CDI: sudo nvidia-ctk cdi generate"
            " --output=/etc/cdi/nvidia.yaml, nvidia-container-runtime.mode=cdi; restart the engine"
        ),
    ),
    (
        r"updating ldcache: .*pivot_root",
        "where the system's / lies in RAM this toolkit (1.18.0) cannot prepare a container",
        "another version of nvidia-container-toolkit: the newest, or 1.17.9",
    ),
    (
        r"application profiles directory.*read-only",
        "this toolkit (1.20.0) writes to /etc/nvidia, which is mounted read-only",
        "mount nothing at /etc/nvidia, or take nvidia-container-toolkit 1.19",
    ),
    (
        r"iptables table .raw'",
        "this kernel has no table raw of iptables, for which Docker asks from 28 on (Jetson)",
        (
            "sudo systemctl edit docker: [Service] Environment=DOCKER_INSECURE_NO_IPTABLES_RAW=1"
            " (28.0.2 or newer), sudo systemctl restart docker; or docker-ce 27.5"
        ),
    ),
    (
        r"session key.*disk quota exceeded",
        "this user's keys in the kernel are all taken: no container starts any more",
        (
            "sudo sysctl -w kernel.keys.maxkeys=1000000 kernel.keys.maxbytes=25000000   # and the"
            " same in /etc/sysctl.d"
        ),
    ),
    (
        r"failed to create link \[/usr/lib/aarch64-linux-gnu/tegra",
        "this toolkit (1.17.1, 1.17.2) cannot make links that are in the image, on a Jetson",
        "a newer nvidia-container-toolkit; or start it with -e NVIDIA_DRIVER_CAPABILITIES=compute",
    ),
    (
        r"check if link exists: unexpected link target|hook.*failed to create link",
        "this toolkit (1.17.0) makes links anew that are in the image",
        "a newer nvidia-container-toolkit (from 1.17.1 on)",
    ),
    (
        r"nvidia-(?:cdi-hook|ctk): no such file",
        "the GPUs' description (CDI) names a program that is not there",
        (
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; the program comes with"
            " nvidia-container-toolkit-base"
        ),
    ),
    (
        r"device error: \S+: unknown device",
        "NVIDIA_VISIBLE_DEVICES, or the image, names a GPU or MIG instance that is not here",
        "name those of nvidia-smi -L, and make the container anew",
    ),
    (
        (
            "unresolvable CDI|failed to stat CDI|CDI device injection failed"
            r"|failed to fulfil mount request.*no such file|cannot stat \S*lib(?:nvidia|cuda)"
        ),
        "the CDI description is missing, or older than the driver",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        r"bpf_prog_query|failed to add device rules|cgroups?/devices.*(denied|not permitted)",
        "the toolkit may not set the device cgroup: a rootless engine, or one inside LXC",
        f"{NO_CGROUPS}=true; restart the engine",
    ),
    (
        "cgroup subsystem devices not found",
        "the toolkit is older than the machine's cgroups (v2), or the engine has none",
        (
            "upgrade nvidia-container-toolkit; where it stays so: "
            f"{NO_CGROUPS}=true; restart the engine"
        ),
    ),
    (
        r"insufficient privileges to read device list from NVIDIA_VISIBLE_DEVICES",
        f"{CONFIG} lets nobody ask for GPUs by a variable, which is how --gpus does it",
        UNASKED,
    ),
    (
        r"unsupported capabilities found in",
        f"{CONFIG} allows containers a part of the driver alone (supported-driver-capabilities)",
        "take that line out of it, or have compute and utility among its words",
    ),
    (
        r"WSL environment detected but no adapters were found",
        "the machine of WSL in which the engine runs sees no GPU",
        "in Windows: wsl --update, wsl --shutdown, and start Docker Desktop again",
    ),
    (
        r"nvidia-persistenced/socket: no such device or address",
        "the toolkit cannot put the socket of nvidia-persistenced into the image, which has one",
        (
            "build the image without /run/nvidia-persistenced; or sudo systemctl stop"
            " nvidia-persistenced and try again"
        ),
    ),
    (
        r"mode as .?csv|invoking the NVIDIA Container Runtime Hook directly",
        "on a Jetson the runtime hands the GPU over, and --gpus does not",
        (
            "sudo nvidia-ctk runtime configure --runtime=docker --set-as-default && sudo systemctl"
            " restart docker; or ENGINE=local"
        ),
    ),
    (
        r"ldconfig\.real: no such file",
        "the toolkit is set to Ubuntu's ldconfig, which this system does not have",
        "sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@/sbin/ldconfig",
    ),
    (
        r"driver rpc error: timed out|driver (?:rpc )?error: failed to process request",
        "the driver takes longer to start than the toolkit waits: nothing keeps it loaded",
        (
            "sudo systemctl enable --now nvidia-persistenced || sudo nvidia-smi -pm 1; where Citrix"
            " is installed, it is that: sudo apt-get purge icaclient; under WSL: Windows' newest"
            " driver, wsl --update, wsl --shutdown, and Docker Desktop anew"
        ),
    ),
    (
        r"unsatisfied condition: cuda",
        "the image wants a newer driver than this one (NVIDIA_REQUIRE_CUDA)",
        "install a newer driver, or build the image for this one: CUDA=cuda12",
    ),
    (
        "Insufficient Permissions",
        "SELinux keeps the devices from containers",
        "sudo setsebool -P container_use_devices 1",
    ),
    (
        "GPU access blocked by the operating system",
        "the toolkit is older than the Windows driver, and hands over a part of it alone",
        (
            "upgrade nvidia-container-toolkit and libnvidia-container* (1.15 or newer), sudo"
            " nvidia-ctk runtime configure --runtime=docker, restart the engine; then wsl"
            " --shutdown in Windows"
        ),
    ),
    (
        "Failed to initialize NVML",
        "the container may not open the devices (cgroup)",
        f"{NO_CGROUPS}=false && sudo systemctl restart docker",
    ),
)
