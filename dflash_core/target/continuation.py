"""A text that the target goes on with, by one token or a block at a time, with as little around the model as can be.

`Target.forward_cached` on a cache of transformers is the definition. A round of decoding is short, so what stands around
the matrix products counts: here the cache grows in place, heads of a group are not repeated, hooks stay for the whole text.

Dims: Q new tokens, T cached tokens, F features width, V vocab; batch is 1.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from dflash_core.target.grouped_attention import causal_mask, grouped
from dflash_core.target.layers import check_layer_ids
from dflash_core.target.model import Target, without_autocast

_FIRST_ROOM = 256  # rows; doubled whenever they are full


class GrowingLayer(DynamicLayer):
    """Keys and values in buffers with room: new rows are copied in, where DynamicLayer copies all rows anew each time.

    `keys` and `values` are views of the rows in use, so that cropping is the parent's.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._buffers = [key_states.new_empty(0), value_states.new_empty(0)]
        self._room = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        used = self.get_seq_length()
        total = used + key_states.shape[-2]
        if total > self._room:
            self._grow(used, total, (key_states, value_states))
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., used:total, :] = new
        self.keys, self.values = (buffer[..., :total, :] for buffer in self._buffers)
        return self.keys, self.values

    def _grow(self, used: int, total: int, new: tuple[Tensor, Tensor]) -> None:
        self._room = max(_FIRST_ROOM, 2 * self._room, total)
        for index, (rows, kept) in enumerate(zip(new, (self.keys, self.values), strict=True)):
            self._buffers[index] = rows.new_empty(*rows.shape[:-2], self._room, rows.shape[-1])
            if used:
                self._buffers[index][..., :used, :] = kept


class Continuation:
    """One text in the target's cache. Use it as a context: hooks, and the attention of `grouped_attention`, last as long."""

    def __init__(self, target: Target, layer_ids: Sequence[int]) -> None:
        """`layer_ids` as for `Target.features`; may be empty."""
        self._target = target
        self._ids = check_layer_ids(layer_ids, target.num_layers) if layer_ids else ()
        self._cache = growing_cache(target)
        num_heads = target.config.num_attention_heads
        self._num_groups = num_heads // (getattr(target.config, "num_key_value_heads", None) or num_heads)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._captured = self._stack.enter_context(self._target.capture(self._ids))
        self._stack.enter_context(without_autocast(self._target.device.type))
        is_grouped = self._stack.enter_context(grouped(self._target.model))
        # Where every layer sees the whole text, one mask serves all, and transformers needn't make it: it returns a 4-D one as it is.
        self._masks_itself = is_grouped and self._num_groups > 1 and all(type(layer) is GrowingLayer for layer in self._cache.layers)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def prefill(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The first tokens: logits_1V of the last one only, since the head of a long prompt costs as much as layers, and features_1QF."""
        return self._forward(ids, {"logits_to_keep": 1} if self._target.can_keep_logits else {})

    def step(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The next tokens: logits_QV and features_1QF; the cache has grown by them."""
        if not self._masks_itself or len(ids) == 1:
            return self._forward(ids, {})
        mask_11RT = causal_mask(len(ids), self._cache.get_seq_length(), self._num_groups, self._target.head_weight_VD)
        return self._forward(ids, {"attention_mask": mask_11RT})

    def drop(self, count: int) -> None:
        """Forget the newest `count` tokens. Call it after each step, with 0 too: until then, sliding layers keep what they may need."""
        self._cache.crop(-count)

    def _forward(self, ids: Sequence[int], how: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        ids_1Q = torch.tensor([list(ids)], device=self._target.device)
        logits_QV = self._target.model(input_ids=ids_1Q, cache=self._cache, use_cache=True, **how).logits[0]
        rows = [self._captured[i] for i in self._ids]
        return logits_QV, torch.cat(rows, dim=-1) if rows else logits_QV.new_empty(1, len(ids), 0)


def growing_cache(target: Target) -> DynamicCache:
    """An empty cache that can be cropped past a sliding window too, which needs its past recorded."""
    cache = target.new_cache()
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    cache.activate_past_recording()
    return cache
