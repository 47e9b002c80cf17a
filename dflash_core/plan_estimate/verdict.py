"""Whether what a plan needs fits: in words, for this machine and for GPUs of usual sizes."""

import shutil
from pathlib import Path

import psutil

# Sizes by which GPUs are named. They have that many GiB, so GB leave 7 % for the allocator's fragmentation.
GPU_GIGABYTES = (16, 24, 40, 48, 80, 141)


def gpu_verdict(num_bytes: float) -> str:
    """Which GPUs hold so much."""
    fitting = [size for size in GPU_GIGABYTES if num_bytes <= size * 1e9]
    if not fitting:
        return f"fits no GPU of {GPU_GIGABYTES[-1]} GB; lower bucket.tokens_per_microbatch, or shard (distributed.parallel: fsdp2)"
    return f"fits a GPU of {fitting[0]} GB"


def here_verdict(num_bytes: float, has: float, what: str) -> str:
    """So many bytes against what this machine has."""
    return f"{'fits' if num_bytes <= has else 'does not fit'} in this machine's {what}, {has / 1e9:,.1f} GB"


def memory_here() -> float:
    """Bytes that processes could still take."""
    return float(psutil.virtual_memory().available)


def gpu_here() -> float | None:
    """Bytes of this machine's first GPU, None without one."""
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def disk_here() -> float:
    """Free bytes in the working directory."""
    return float(shutil.disk_usage(Path()).free)
