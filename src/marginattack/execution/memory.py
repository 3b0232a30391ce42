"""How many inputs fit into memory at once."""

import os
from pathlib import Path

import torch
from torch import Tensor

from marginattack.execution.probe import LARGEST_BLOCK, kept_tensors
from marginattack.execution.session import Session

SHARE = 0.5  # of the free memory that a batch may fill; caches and the allocator need the rest
LARGEST = {"cpu": 256, "cuda": 1024}  # larger batches are no faster
COPIES = 24  # of an input that an attack holds: iterates, gradients, the incumbent


def fitting_batch_size(session: Session, image: Tensor) -> int:
    """The batch size, a power of two, whose forward and backward fit into the free memory."""
    device = session.classifier.device
    each = bytes_per_input(session, image)
    room = int(SHARE * free_memory(device) / max(each, 1))
    largest = LARGEST.get(device.type, 256)
    if device.type == "cpu":
        largest = max(1, min(largest, LARGEST_BLOCK // (image.numel() * image.element_size())))
    return 1 << (max(1, min(room, largest)).bit_length() - 1)


def bytes_per_input(session: Session, image: Tensor) -> int:
    """What one input's forward keeps for its backward, and what an attack holds for it."""
    input_bytes, *kept = kept_tensors(session.evaluator(), image)
    return sum(kept) + COPIES * input_bytes


def free_memory(device: torch.device) -> int:
    """Free bytes for this process: the device's, or the machine's within the limit of its control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known on this system
        return 2 << 30
    fields = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)
    if "MemAvailable" in fields:
        free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    return min(free, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else free


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
