"""Batched greedy generation: a lean loop over left-padded prompts with a cache that doesn't copy itself.

Dims: B batch rows, P padded prompt tokens, T tokens so far, H heads, V vocab.
transformers' generate() concatenates every layer's keys and values at each token; for SmolLM2 at batch 64
and 200 tokens that copies 300 MB a step, as much time as the arithmetic. Here the buffers are allocated once,
and rows that have stopped leave the batch whenever half of it is done (each new batch size costs oneDNN
about a second, so sizes are only halved).
"""

from collections.abc import Collection, Sequence

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

MIN_BATCH_ROWS = 8  # below this a step is bound by reading the weights: fewer rows save nothing


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one full-attention layer in buffers of a fixed capacity; `update` writes in place."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.device = key_states.device
        self._key_buffer = self._allocate(key_states)
        self._value_buffer = self._allocate(value_states)
        self.is_initialized = True

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        batch, heads, _, dim = like.shape
        return like.new_empty(batch, heads, self._capacity, dim)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self._length + key_states.shape[-2]
        self._key_buffer[:, :, self._length : end] = key_states
        self._value_buffer[:, :, self._length : end] = value_states
        self._length = end
        self.keys, self.values = self._key_buffer[:, :, :end], self._value_buffer[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._length

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._key_buffer, self._value_buffer = self._key_buffer[indices], self._value_buffer[indices]
        self.keys, self.values = self._key_buffer[:, :, : self._length], self._value_buffer[:, :, : self._length]


def preallocated_cache(model: PreTrainedModel, capacity: int) -> DynamicCache:
    """transformers' own cache for this model, its full-attention layers replaced by preallocated ones."""
    cache = DynamicCache(config=model.config)
    cache.layers = [PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


@torch.inference_mode()
def greedy_batch(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], padded_length: int, max_new_tokens: int, stop_ids: Collection[int]
) -> list[list[int]]:
    """Greedy continuation of each prompt, the stop token included where one was reached.

    Args:
        model: A causal LM in eval mode.
        prompts: Token ids; none longer than `padded_length`, none empty.
        padded_length: Width to which prompts are padded on the left.
        max_new_tokens: Most tokens a row.
        stop_ids: A row ends with the first of these.
    """
    ids_BP, mask_BT = _left_pad(prompts, padded_length, model.device)
    mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(prompts), max_new_tokens)], dim=1)
    cache = preallocated_cache(model, padded_length + max_new_tokens)
    answers: list[list[int]] = [[] for _ in prompts]
    rows, running = list(range(len(prompts))), [True] * len(prompts)
    step_ids_BT, position_BT = ids_BP, (mask_BT[:, :padded_length].cumsum(1) - 1).clamp(min=0)
    for length in range(padded_length, padded_length + max_new_tokens):
        logits_B1V = model(
            input_ids=step_ids_BT, attention_mask=mask_BT[:, :length], position_ids=position_BT, cache=cache, use_cache=True,
            logits_to_keep=1,
        ).logits  # fmt: skip
        next_B = logits_B1V[:, -1].argmax(-1)
        for slot, token in enumerate(next_B.tolist()):
            if running[slot]:
                answers[rows[slot]].append(token)
                running[slot] = token not in stop_ids
        if not any(running):
            break
        step_ids_BT, position_BT = next_B[:, None], position_BT[:, -1:] + 1
        keep = rows_to_keep(running)
        if keep is not None:
            keep_B = torch.tensor(keep, device=model.device)
            cache.batch_select_indices(keep_B)
            step_ids_BT, position_BT, mask_BT = step_ids_BT[keep_B], position_BT[keep_B], mask_BT[keep_B]
            rows, running = [rows[i] for i in keep], [running[i] for i in keep]
    return answers


def _left_pad(prompts: Sequence[Sequence[int]], padded_length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """ids_BP and mask_BP (int64), prompts at the right end."""
    ids_BP = torch.zeros(len(prompts), padded_length, dtype=torch.int64)
    mask_BP = torch.zeros(len(prompts), padded_length, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids_BP[row, padded_length - len(prompt) :] = torch.tensor(prompt)
        mask_BP[row, padded_length - len(prompt) :] = 1
    return ids_BP.to(device), mask_BP.to(device)


def rows_to_keep(running: Sequence[bool]) -> list[int] | None:
    """Slots of the next, smaller batch: a power-of-two fraction of this one, filled up with stopped rows; None: as it is."""
    size = len(running)
    while size // 2 >= max(sum(running), MIN_BATCH_ROWS):
        size //= 2
    if size == len(running):
        return None
    stopped_first = sorted(range(len(running)), key=lambda slot: not running[slot])
    return sorted(stopped_first[:size])
