"""Several texts that the target goes on with at once, each by as many tokens as it committed.

Speculative decoding commits another number of tokens in each text and round. A padded cache would be left with holes, which
the masks of sliding layers, and positions, count as tokens. Here each text has its own length: new keys and values are written behind
it, over those of refused drafts, and the mask hides what lies behind. Row and position are the same number, so no layer kind is special.

Dims: B texts, Q new tokens each, T cached and new tokens, H heads, d head width, F features width, V vocab.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from dflash_core.errors import ConfigError
from dflash_core.target.grouped_attention import grouped
from dflash_core.target.layers import check_layer_ids
from dflash_core.target.model import Target, without_autocast
from dflash_core.target.ragged_rows import RaggedRows


class RaggedLayer(DynamicLayer):
    """Keys and values of one attention layer, of all texts. Rows that were never written are zeros: a hidden NaN would still spread."""

    def __init__(self, rows: RaggedRows) -> None:
        super().__init__()
        self._rows = rows

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device, self.dtype = key_states.device, key_states.dtype
        self._buffers = [x.new_zeros(*x.shape[:2], self._rows.capacity, x.shape[-1]) for x in (key_states, value_states)]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            self._rows.write(buffer, new)
        self.keys, self.values = (buffer[:, :, : self._rows.end(key_states.shape[2])] for buffer in self._buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._rows.end(0)

    def select(self, texts: Sequence[int]) -> None:
        """Go on with these texts only."""
        self._buffers = [buffer[list(texts)] for buffer in self._buffers]


class RaggedTexts:
    """Texts in the target's cache. Use it as a context: hooks, and the attention of `grouped_attention`, last as long."""

    def __init__(self, target: Target, layer_ids: Sequence[int], num_texts: int, capacity: int) -> None:
        """Room for `capacity` tokens a text, drafts that are refused included; `layer_ids` as for `Target.features`, may be empty.

        Raises:
            ConfigError: the target has layers that aren't attention over all or a window of the text.
        """
        self._target = target
        self._ids = check_layer_ids(layer_ids, target.num_layers) if layer_ids else ()
        self.rows = RaggedRows(num_texts, capacity, torch.device(target.device))
        self._cache = target.new_cache()
        self._windows = _windows(self._cache, target)
        self._cache.layers = [RaggedLayer(self.rows) for _ in self._cache.layers]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._captured = self._stack.enter_context(self._target.capture(self._ids))
        self._stack.enter_context(without_autocast(self._target.device.type))
        is_grouped = self._stack.enter_context(grouped(self._target.model))
        config = self._target.config
        self._groups = config.num_attention_heads // (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) if is_grouped else 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def step(self, ids: Sequence[Sequence[int]], keep_logits: bool = True) -> tuple[Tensor, Tensor]:
        """Forward Q tokens of each text: logits_BQV and features_BQF, after which `advance` says how many count.

        Without `keep_logits`, only the last column has logits: the head of a long prompt costs as much as layers.
        """
        ids_BQ = torch.tensor([list(row) for row in ids], device=self._target.device)
        fewer = {"logits_to_keep": 1} if not keep_logits and self._target.can_keep_logits else {}
        logits_BQV = self._target.model(
            input_ids=ids_BQ,
            attention_mask=self._masks(ids_BQ.shape[1]),
            position_ids=self.rows.positions(ids_BQ.shape[1]),
            cache=self._cache,
            use_cache=True,
            **fewer,
        ).logits
        kept = [self._captured[i] for i in self._ids]
        return logits_BQV, torch.cat(kept, dim=-1) if kept else logits_BQV.new_empty(*ids_BQ.shape, 0)

    def select(self, texts: Sequence[int]) -> None:
        """Go on with these texts only."""
        self.rows.select(texts)
        for layer in self._cache.layers:
            layer.select(texts)

    def _masks(self, num_new: int) -> Tensor | dict[str, Tensor]:
        """Additive [B, 1, R, T]; transformers takes one for all layers as it is, and one by layer kind where there are two kinds."""
        masks = {kind: self._mask(num_new, window) for kind, window in self._windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, num_new: int, window: int | None) -> Tensor:
        behind_BQT = self.rows.positions(num_new)[..., None] - torch.arange(self.rows.end(num_new), device=self._target.device)
        hidden_BQT = behind_BQT < 0
        if window is not None:
            hidden_BQT = hidden_BQT | (behind_BQT >= window)
        mask_BQT = torch.zeros(hidden_BQT.shape, dtype=self._target.dtype, device=self._target.device).masked_fill_(hidden_BQT, float("-inf"))
        return mask_BQT.repeat(1, self._groups, 1)[:, None]


def _windows(cache: DynamicCache, target: Target) -> dict[str, int | None]:
    """The layers' kinds, by transformers' names, and how far each sees."""
    kinds = {DynamicLayer: "full_attention", DynamicSlidingWindowLayer: "sliding_attention"}
    others = {type(layer).__name__ for layer in cache.layers if type(layer) not in kinds}
    if others:
        raise ConfigError(
            f"{target.path} has layers with {', '.join(sorted(others))}, expected full or sliding attention to decode several texts at once. "
            "Set evaluation.batch_size to 1."
        )
    return {kinds[type(layer)]: getattr(layer, "sliding_window", None) for layer in cache.layers}
