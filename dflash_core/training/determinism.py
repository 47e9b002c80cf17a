"""Makes a run repeatable bit by bit: deterministic kernels, fixed generators; the core's only environment variable.

It holds for the same machine with the same number of threads: a sum over more threads is another sum.
"""

import os
import random
from typing import Any

import numpy as np
import torch


def make_repeatable(deterministic: bool, seed: int) -> None:
    """Choose kernels and seed the global generators; call before the first CUDA call of the process.

    Nothing in the loop draws from these generators today; they are fixed so that a later part that does is
    repeatable.
    """
    if deterministic:  # cuBLAS reads it when its first handle is made, and torch refuses its kernels without it
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that writes every new buffer once more
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def conditions(device: torch.device) -> dict[str, Any]:
    """What bits depend on beside the run's own settings; logged, so that a replay knows whether it must be bit-equal."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
