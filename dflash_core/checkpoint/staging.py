"""Copies a state into host buffers that are kept from save to save, so that the loop waits for this copy and nothing else.

The buffers decide: 200 MB block 21-48 ms where they are kept, 25-176 ms where each save allocates and touches new ones. On a
GPU the copies run on a stream of their own, beside the next forward and backward; only the next update must wait for them.
"""

from dataclasses import replace

import torch

from dflash_core.checkpoint.contents import Piece, Share


class HostBuffers:
    """One buffer a tensor, reused: a share lies in them from `stage` until the next `stage`."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    @property
    def of_gpu(self) -> bool:
        """What was staged last came from a GPU."""
        return self._stream is not None

    def stage(self, share: Share) -> Share:
        """The same share in the buffers; on a GPU valid after `wait`."""
        tensors = [piece.rows for part in (share.weights, share.moments) for piece in part.values()]
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is None:
            return self._copy(share)
        self._stream = self._stream or torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))  # the update that has just been queued
        with torch.cuda.stream(self._stream):
            staged = self._copy(share)
            self._copied = self._stream.record_event()
        return staged

    def before_update(self) -> None:
        """Call before each update: on a GPU it is queued behind the copies, else they would be torn by it."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def wait(self) -> None:
        """Until the copies have arrived; called by who reads them, not by the loop."""
        if self._copied is not None:
            self._copied.synchronize()

    def _copy(self, share: Share) -> Share:
        weights, moments = ({n: self._copy_piece(n, piece) for n, piece in part.items()} for part in (share.weights, share.moments))
        return replace(share, weights=weights, moments=moments)

    def _copy_piece(self, name: str, piece: Piece) -> Piece:
        rows, kept = piece.rows.detach(), self._kept.get(name)
        if kept is None or kept.shape != rows.shape or kept.dtype != rows.dtype:
            kept = self._kept[name] = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda)
        kept.copy_(rows, non_blocking=True)
        return replace(piece, rows=kept)
