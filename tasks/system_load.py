"""How busy the machine is while a run goes on: one record every few seconds in a file beside the run's log.

A file, and not MLflow's own monitor, which sends at once and loses what the server doesn't take.
"""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tasks.log_tail import polling
from tasks.shipping import SYSTEM_LOG

SECONDS_BETWEEN_SAMPLES = 10.0
GPU_QUERY = ("nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,power.draw", "--format=csv,noheader,nounits")
MEGABYTE = 1e6


@contextlib.contextmanager
def sampling_load(log_file: Path) -> Iterator[None]:
    """Sample while the body runs and the training log grows; a training that is up to date has no load to show."""
    psutil.cpu_percent()  # the first call has nothing to compare with

    def sample(size_before: int) -> int:
        size = log_file.stat().st_size if log_file.exists() else 0
        if size > size_before > 0:
            with contextlib.suppress(OSError), (log_file.parent / SYSTEM_LOG).open("a", encoding="utf-8") as load:
                load.write(json.dumps({"kind": "system", "wall_time": time.time(), "metrics": load_now()}) + "\n")
        return size

    with polling(sample, "system-load", SECONDS_BETWEEN_SAMPLES):
        yield


def load_now() -> dict[str, float]:
    """CPU, memory, disk, network and GPUs, under the names that MLflow's own monitor uses."""
    memory, disk, network = psutil.virtual_memory(), psutil.disk_usage("/"), psutil.net_io_counters()
    return {
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_megabytes": memory.used / MEGABYTE,
        "system_memory_usage_percentage": memory.percent,
        "disk_usage_percentage": disk.percent,
        "network_receive_megabytes": network.bytes_recv / MEGABYTE,
        "network_transmit_megabytes": network.bytes_sent / MEGABYTE,
    } | gpu_load()


def gpu_load() -> dict[str, float]:
    """By NVIDIA's own tool where it is installed; it loads neither CUDA nor a library into this process."""
    if shutil.which(GPU_QUERY[0]) is None:
        return {}
    try:
        answer = subprocess.run(GPU_QUERY, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_gpus(answer)


def parse_gpus(answer: str) -> dict[str, float]:
    """One line a GPU: index, utilization in %, memory in MiB, power in W; a value that the GPU doesn't tell is left out."""
    load = {}
    for line in answer.splitlines():
        index, *values = (part.strip() for part in line.split(","))
        names = ("utilization_percentage", "memory_usage_mebibytes", "power_usage_watts")
        for name, value in zip(names, values, strict=False):
            with contextlib.suppress(ValueError):
                load[f"gpu_{index}_{name}"] = float(value)
    return load
