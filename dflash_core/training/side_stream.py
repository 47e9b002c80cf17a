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
        if self._stream is not None:  # whatever was begun here before, such as the target's weights on their way to the GPU
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def run(self, compute: Callable[[], T]) -> tuple[T, "Ready"]:
        """Compute on the side stream; returns when it is done. Hand the result over with its `Ready`, which the consumer calls.

        Waiting here costs the start of the next kernels, and makes times and queue depths those of the work done.
        """
        if self._stream is None:
            return compute(), NOW
        torch.cuda.set_device(self._stream.device)  # every thread begins on GPU 0, where the rank has no business
        with torch.cuda.stream(self._stream):
            result = compute()
            event = torch.cuda.Event(blocking=True)  # sleeps instead of taking a core from the loop
            event.record()
        event.synchronize()
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
            if tensor.is_cuda:  # features from a cache are on the CPU
                tensor.record_stream(stream)


NOW = Ready(None)
