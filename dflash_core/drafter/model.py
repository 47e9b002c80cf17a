"""The DFlash drafter: block tokens in, hidden states for the target's own LM head out.

z-lab's layout: `fc` and `hidden_norm` turn concatenated target features into the context, computed
once and read by every layer's k_proj and v_proj; queries come from the block only. There is no
embedding and no LM head here: both are the target's, frozen.

Dims: B batch rows, T context rows, A anchors, K block slots (anchor included), D hidden,
F features width, N newly committed rows.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from dflash_core.drafter.attention import Blocks, fast_attention, reference_attention
from dflash_core.drafter.layers import Context, DrafterLayer, Queries, RMSNorm
from dflash_core.drafter.proposing import DrafterCache, propose
from dflash_core.drafter.rope import Rope
from dflash_core.drafter.spec import DrafterSpec


class Drafter(nn.Module):
    """The network. `state_dict()` has exactly z-lab's keys (58 for 5 layers)."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(DrafterLayer(spec, layer) for layer in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.fc = nn.Linear(spec.features_size, spec.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.rope = Rope(spec)

    def forward(
        self,
        features_BTF: Tensor,
        block_embeds_BAKD: Tensor,
        anchors_BA: Tensor,
        attention: Literal["fast", "reference"] = "fast",
        label_slots_only: bool = False,
    ) -> Tensor:
        """Hidden states of every block after the final norm, ready for the target's LM head.

        Args:
            features_BTF: target features of the rows; a block reads those at positions < its anchor only.
            block_embeds_BAKD: target embeddings of [anchor token, MASK * (K-1)].
            anchors_BA: int64 positions, sorted along A for speed. A padded slot may repeat any anchor.
            label_slots_only: leave out the anchor's slot, which predicts nothing: [B, A, K-1, D]. Its
                query and MLP in the last layer are then not computed.

        Returns:
            hidden_BAKD, or hidden_BASD with S = K-1, in the embeddings' dtype (float32 under autocast).
        """
        K = block_embeds_BAKD.shape[2]
        last = len(self.layers) - 1
        attend = fast_attention if attention == "fast" else reference_attention
        positions_1T = torch.arange(features_BTF.shape[1], device=anchors_BA.device)[None]
        context = Context(self.context(features_BTF), self.rope(positions_1T))
        slot_angles = self.rope(anchors_BA[..., None] + torch.arange(K, device=anchors_BA.device))
        heads_per_key = self.spec.num_heads // self.spec.num_kv_heads
        all_slots = Blocks.plan(anchors_BA, K, heads_per_key)
        label_slots = Blocks.plan(anchors_BA, K, heads_per_key, first_slot=1) if label_slots_only else all_slots
        x_BAKD = block_embeds_BAKD.to(self.norm.weight.dtype)
        for index, layer in enumerate(self.layers):
            blocks, first_slot = (label_slots, int(label_slots_only)) if index == last else (all_slots, 0)
            x_BAKD = layer(x_BAKD, context, Queries(slot_angles, blocks, first_slot, attend))
        return self.norm(x_BAKD)

    def context(self, features_BTF: Tensor) -> Tensor:
        """context_BTD = hidden_norm(fc(features)), which every layer's k_proj and v_proj read."""
        if not torch.is_autocast_enabled(features_BTF.device.type):
            features_BTF = features_BTF.to(self.fc.weight.dtype)
        return self.hidden_norm(self.fc(features_BTF), for_linear=True)

    def new_cache(self) -> DrafterCache:
        """An empty cache for one sequence."""
        return DrafterCache(self)

    def propose(self, new_features_1NF: Tensor, block_embeds_1KD: Tensor, cache: DrafterCache) -> Tensor:
        """Hidden states of the block that starts right after the committed rows.

        The first call takes the prompt's features, each later one those of the tokens committed since
        (accepted + 1 rows). The anchor, the newest committed token, is not among them: its features
        don't exist yet. K may be smaller than the block size.

        Returns:
            hidden_1KD after the final norm; the cache has grown by N rows.
        """
        return propose(self, new_features_1NF, block_embeds_1KD, cache)
