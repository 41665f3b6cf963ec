"""Programs that compute on the GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from host.machine import Machine
from host.text import whole

_APPS = ("gpu_uuid", "pid", "process_name", "used_memory")
# Programs of a desktop, which compute on a GPU to draw; they leave it to others.
_DESKTOP = re.compile(
    r"(gnome-shell|mutter|kwin_(wayland|x11)|plasmashell|Xwayland|Xorg|X|sway|hyprland|weston"
    r"|cinnamon|cosmic-comp|gnome-remote-desktop-daemon|xdg-desktop-portal\S*)( |$)",
    re.IGNORECASE,
)
_WINDOWS = re.compile(
    r"(nautilus|dolphin|gnome-[\w-]+|ptyxis|firefox\S*|chrom(e|ium)\S*|brave|msedge|opera|vivaldi"
    r"|code|electron|discord|slack|spotify|steam|steamwebhelper|kitty|alacritty|ghostty|konsole)\b",
    re.IGNORECASE,
)
TRAINER = "python|pt_|torchrun|accelerate|ray::"
"""How the kernel calls programs that train, and their threads: beginnings of names."""
COMPUTES = re.compile(
    rf"{TRAINER}|deepspeed|jupyter|ipython|\w*train|vllm|sglang|tritonserver|ollama|llama|yolo|nnunet"
    r"|axolotl|julia|matlab|nccl|\w*cuda|colmap|hashcat|gmx|namd|amber|.*\.py\b",
    re.IGNORECASE,
)
"""The same, with programs that serve models, reckon or measure."""
# Programs that draw, as the kernel's log has their names, of fifteen letters.
_DRAWS = re.compile(
    r".*\.(e|ex|exe|x86_64)$|.*-Win64-|(wine|proton|gamescope|steam|vk|dxvk|Unity|UE[45]|Render"
    r"|GameThread|mpv|vlc|glx|GPU-Watchdog|WebRender|Isolated Web|Web Content|Compositor)"
    r"|(GPU|RDD|Web|Socket|Utility) Process",
    re.IGNORECASE,
)
_A_WINDOW, _CONTEXT = 1024, 200  # MiB


@dataclass(frozen=True)
class App:
    """A program that computes on a GPU."""

    uuid: str
    pid: str
    name: str
    memory: str


def computing(machine: Machine) -> list[App]:
    """Programs that compute on GPUs, but for a desktop's own."""
    query = f"--query-compute-apps={','.join(_APPS)}"
    answer = machine.run("nvidia-smi", query, "--format=csv,noheader,nounits")
    rows = [re.split(", *", line.strip()) for line in answer.out.splitlines() if answer.code == 0]
    found = [App(*row) for row in rows if len(row) == len(_APPS)]
    return [app for app in found if not (_DESKTOP.match(name := _stem(app)) or _draws(app, name))]


def is_small(app: App) -> bool:
    """Whether it holds less than what a training takes: a window that is drawn, by Vulkan."""
    held = whole(app.memory)
    return held is not None and held < _CONTEXT and not re.match(TRAINER, _stem(app))


def is_window(app: App) -> bool:
    """Whether a program at a GPU with a screen is likely to draw: desktops' have any name."""
    held = whole(app.memory)
    return held is not None and held < _A_WINDOW and not COMPUTES.match(_stem(app))


def draws(name: str) -> bool:
    """Whether a program that the kernel's log names is known to draw: a desktop's, a browser, a
    game.
    """
    return any(sign.match(name) for sign in (_DESKTOP, _WINDOWS, _DRAWS))


def _stem(app: App) -> str:
    return app.name.rsplit("/", 1)[-1]


def _draws(app: App, name: str) -> bool:
    """Whether it is a browser, or the like, which draws its window on the GPU."""
    held = whole(app.memory)
    window = _WINDOWS.match(name) is not None or "--type=gpu-process" in app.name
    return window and (held is None or held < _A_WINDOW)
