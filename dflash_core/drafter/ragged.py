"""The drafter over several texts of different lengths at once: a block for each, behind as many context rows as it has.

`Drafter.propose` does one text faster; here the layers' own forward runs, with keys and values of the context kept.

Dims: B texts, N newly committed rows (padded), K block slots, T context rows, D hidden, F features width, H key heads, d head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.drafter.attention import Blocks, reference_attention
from dflash_core.drafter.layers import KnownKeys, Queries
from dflash_core.drafter.model import Drafter
from dflash_core.target.ragged_rows import RaggedRows


class RaggedContext:
    """Keys and values of each text's committed rows, which are where the target's are: `rows` is shared with its cache."""

    def __init__(self, drafter: Drafter, rows: RaggedRows) -> None:
        self._drafter, self._rows = drafter, rows
        spec, weight = drafter.spec, drafter.fc.weight
        shape = (len(rows.lengths), spec.num_kv_heads, rows.capacity, spec.head_dim)
        self._kept = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in drafter.layers]

    @torch.no_grad()
    def write(self, features_BNF: Tensor) -> None:
        """Features of the tokens behind each text; `rows.advance` says how many count."""
        context_BND, angles = self._drafter.context(features_BNF), self._drafter.rope(self._rows.positions(features_BNF.shape[1]))
        for layer, kept in zip(self._drafter.layers, self._kept, strict=True):
            for buffer_BHTd, new_BHNd in zip(kept, layer.self_attn.context(context_BND, angles), strict=True):
                self._rows.write(buffer_BHTd, new_BHNd)

    @torch.no_grad()
    def propose(self, block_embeds_BKD: Tensor) -> Tensor:
        """hidden_BKD of a block right behind each text, after the final norm."""
        drafter, num_slots, longest = self._drafter, block_embeds_BKD.shape[1], self._rows.end(0)
        blocks = Blocks.plan(self._rows.positions(1), num_slots, drafter.spec.num_heads // drafter.spec.num_kv_heads)
        queries = Queries(drafter.rope(self._rows.positions(num_slots)[:, None]), blocks, 0, reference_attention)
        x_B1KD = block_embeds_BKD[:, None].to(drafter.norm.weight.dtype)
        for layer, (k_BHTd, v_BHTd) in zip(drafter.layers, self._kept, strict=True):
            x_B1KD = layer(x_B1KD, KnownKeys((k_BHTd[:, :, :longest], v_BHTd[:, :, :longest])), queries)
        return drafter.norm(x_B1KD)[:, 0]

    def select(self, texts: Sequence[int]) -> None:
        """Go on with these texts only; `rows` are selected by the target's texts."""
        self._kept = [(keys[list(texts)], values[list(texts)]) for keys, values in self._kept]
