"""A run killed with SIGKILL, once in a save and once in a step, ends with the uninterrupted run's weights."""

import multiprocessing
import os
from pathlib import Path

import kill_campaign
import torch

from dflash_core.config import load_config
from dflash_core.stages.train import train


class Forked:
    """Training in a fork of this process: an interpreter of its own would spend 5 s on imports at each of four starts."""

    def __init__(self, workspace: Path) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=_train, args=(workspace,))
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        os.kill(self._process.pid, sig)


def _train(workspace: Path) -> None:
    torch.set_num_threads(1)  # torch makes its thread pool anew in a fork, and fails where two threads come to that at once
    train(load_config(workspace / "params.yaml"), workspace, resume="auto")


def test_a_killed_run_ends_bit_identical(tmp_path: Path) -> None:
    result = kill_campaign.campaign(tmp_path, num_kills=2, seed=1, num_steps=12, start=Forked)
    assert result["identical"], result
    assert [kill["aim"] for kill in result["kills"]] == ["save", "step"]
    assert all(kill["logged_step"] >= wanted for kill, wanted in zip(result["kills"], (4, 8), strict=True))
