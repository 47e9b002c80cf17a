"""Work of a producer's thread on its own CUDA stream, so that the target's forward overlaps with the drafter's step.

A new thread works on the default stream, which the trainer uses as well: its kernels would queue behind the step's.
Elsewhere than on CUDA nothing is needed.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class SideStream:
    """One stream a producer. Each result comes with the event that says when it is there."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, compute: Callable[[], T]) -> tuple[T, "Ready"]:
        """Compute on the side stream. Hand the result over with its `Ready`, which the consumer waits for."""
        if self._stream is None:
            return compute(), NOW
        with torch.cuda.stream(self._stream):
            result = compute()
            event = torch.cuda.Event()
            event.record()
        return result, Ready(event)


class Ready:
    """Says that a tensor of another stream may be read."""

    def __init__(self, event: "torch.cuda.Event | None") -> None:
        self._event = event

    def wait(self, tensors: Sequence[Tensor]) -> None:
        """Let the current stream wait, and keep the tensors' memory until it has read them."""
        if self._event is None:
            return
        stream = torch.cuda.current_stream()
        stream.wait_event(self._event)
        for tensor in tensors:
            tensor.record_stream(stream)


NOW = Ready(None)
