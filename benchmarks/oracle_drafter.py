"""A drafter that knows the continuation, and misses just where it is told to.

It stands where a drafter stands: it gets the target's features of committed rows, and gives hidden states for the target's
own head. So it also checks what it is given: each row must be the target's feature of just the next position.
Dims: T tokens, N new rows, B rows, A anchors, K block slots, D hidden, F features width.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dflash_core.config import DrafterConfig
from dflash_core.drafter.spec import from_target
from dflash_core.target.model import Target

FirstMiss = Callable[[int], int | None]


class OracleDrafter(nn.Module):
    """Drafts the target's own text.

    The hidden state that the target itself has before a token makes that token its head's best. A slot that shall miss gets
    the opposite one, whose best token is the target's worst.
    """

    def __init__(self, target: Target, text: Sequence[int], wrong: FirstMiss, block_size: int) -> None:
        """`text` is prompt and the target's greedy answer; `wrong(anchor)` is the first slot that shall miss, or None."""
        super().__init__()
        settings = DrafterConfig(num_layers=1, block_size=block_size, target_layer_ids=(0, 1))
        self.spec = from_target(target.config, settings, target.vocab_size - 1)
        self.text, self.wrong, self.target = list(text), wrong, target
        self.fc = nn.Linear(1, 1, bias=False)  # tells dtype and device
        self.num_anchors = 0
        ids_1T = torch.tensor([self.text], device=target.device)
        with torch.inference_mode():
            self.features_TF = target.features(ids_1T, self.spec.target_layer_ids)[0]
            self.hidden_TD = target.model.get_decoder()(input_ids=ids_1T, use_cache=False).last_hidden_state[0]

    def missing(self, wrong: FirstMiss) -> "OracleDrafter":
        """The same one, with other misses."""
        self.wrong = wrong
        return self

    def new_cache(self) -> list[int]:
        """The number of rows seen."""
        return [0]

    def propose(self, new_features_1NF: Tensor, block_embeds_1KD: Tensor, cache: list[int]) -> Tensor:
        """As Drafter.propose; the rows must be the target's features of exactly the next positions."""
        start, anchor = cache[0], cache[0] + new_features_1NF.shape[1]
        expected_NF = self.features_TF[start:anchor]
        torch.testing.assert_close(new_features_1NF[0], expected_NF, rtol=1e-4, atol=1e-4 * (1 + float(expected_NF.abs().max())))
        cache[0] = anchor
        return self._hidden_KD(anchor, block_embeds_1KD)[None]

    def forward(self, features_BTF: Tensor, block_embeds_BAKD: Tensor, anchors_BA: Tensor, label_slots_only: bool = False) -> Tensor:
        """As Drafter.forward."""
        self.num_anchors += anchors_BA.numel()
        rows = [
            torch.stack([self._hidden_KD(anchor, block_embeds_BAKD[b, i : i + 1]) for i, anchor in enumerate(anchors)])
            for b, anchors in enumerate(anchors_BA.tolist())
        ]
        return torch.stack(rows)[:, :, int(label_slots_only) :]

    def _hidden_KD(self, anchor: int, block_embeds_1KD: Tensor) -> Tensor:
        num_slots = block_embeds_1KD.shape[1]
        ids = torch.tensor([self.text[anchor]] + [self.spec.mask_token_id] * (num_slots - 1), device=self.target.device)
        torch.testing.assert_close(block_embeds_1KD[0], self.target.embed(ids))
        hidden_KD = self.hidden_TD.new_zeros(num_slots, self.hidden_TD.shape[1])
        known_KD = self.hidden_TD[anchor : anchor + num_slots - 1]
        hidden_KD[1 : 1 + len(known_KD)] = known_KD
        wrong = self.wrong(anchor)
        if wrong is not None and wrong < num_slots:
            hidden_KD[wrong] = -hidden_KD[wrong]
        return hidden_KD


def planned_rounds(wrong: FirstMiss, first_anchor: int, num_tokens: int, block_size: int) -> list[int]:
    """What each round grants until `num_tokens` after the first are committed: a draft each slot before the miss, and one more.

    The last one may grant more than the limit lets it commit.
    """
    anchor, rounds = first_anchor, []
    while anchor < first_anchor + num_tokens:
        miss = wrong(anchor)
        rounds.append(block_size if miss is None else min(miss, block_size))
        anchor += rounds[-1]
    return rounds
