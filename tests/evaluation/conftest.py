"""Tiny float32 targets of several families, drafters on them, and an oracle drafter of chosen acceptance."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from dflash_core.config import TargetConfig
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.target.model import Target

HIDDEN, VOCAB, LAYERS, BLOCK = 32, 96, 4, 6
MASK_ID = VOCAB - 1
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "initializer_range": 0.3, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, tie_word_embeddings=False),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=16),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SHAPE, sliding_window=16, sliding_window_pattern=2, query_pre_attn_scalar=8
    ),
}


def save_target(directory: Path, family: str) -> Path:
    """A random target of a family in transformers' format, without a tokenizer."""
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).float().eval()
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def target_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved targets by family."""
    root = tmp_path_factory.mktemp("targets")
    return {family: save_target(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The makers below, for the tests of this folder."""
    return SimpleNamespace(
        make_spec=make_spec, random_drafter=random_drafter, prompts=prompts, OracleDrafter=OracleDrafter, BLOCK=BLOCK, VOCAB=VOCAB
    )


@pytest.fixture(scope="session", params=list(FAMILIES))
def target(request: pytest.FixtureRequest, target_dirs: dict[str, Path]) -> Target:
    """The target of each family in turn."""
    return Target.load(TargetConfig(path=str(target_dirs[request.param]), dtype="float32"))


@pytest.fixture(scope="session")
def llama(target_dirs: dict[str, Path]) -> Target:
    """One target, where the family doesn't matter."""
    return Target.load(TargetConfig(path=str(target_dirs["llama"]), dtype="float32"))


def make_spec(block_size: int = BLOCK, sliding: bool = False) -> DrafterSpec:
    """Shape of a two-layer drafter for the targets above."""
    return DrafterSpec(
        hidden_size=HIDDEN, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8, num_layers=2, block_size=block_size,
        mask_token_id=MASK_ID, target_layer_ids=(0, 1), num_target_layers=LAYERS, vocab_size=VOCAB, rope_theta=10000.0,
        layer_types=("sliding_attention", "full_attention") if sliding else (), sliding_window=5 if sliding else None,
        max_position_embeddings=512,
    )  # fmt: skip


def random_drafter(seed: int = 3, sliding: bool = False) -> Drafter:
    """Random weights large enough that drafts depend on the features."""
    torch.manual_seed(seed)
    drafter = Drafter(make_spec(sliding=sliding)).eval()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1))
    return drafter


def prompts(count: int, longest: int = 24, seed: int = 5) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens; the first has a single token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [1, *torch.randint(2, longest + 1, (count - 1,), generator=generator).tolist()]
    return [torch.randint(0, VOCAB - 2, (length,), generator=generator).tolist() for length in lengths]


class OracleDrafter(nn.Module):
    """Drafts the known continuation, except at slots that `wrong` names; checks every feature row that it's given.

    The hidden state of a wanted token t is the head's row t, scaled: with random rows its own logit is the best.
    `wrong(anchor)` is the first slot that shall miss, or None.
    """

    def __init__(self, target: Target, text: Sequence[int], wrong: Callable[[int], int | None], block_size: int = BLOCK) -> None:
        super().__init__()
        self.spec, self.text, self.wrong, self.target = make_spec(block_size), list(text), wrong, target
        self.fc = nn.Linear(1, 1, bias=False)  # tells dtype and device
        self.table_VD = nn.functional.normalize(target.head_weight_VD.detach().float(), dim=-1)
        ids_1T = torch.tensor([self.text], device=target.device)
        with torch.inference_mode():
            self.features_TF = target.features(ids_1T, self.spec.target_layer_ids)[0]
        self.num_anchors = 0

    def new_cache(self) -> list[int]:
        """The number of rows seen."""
        return [0]

    def propose(self, new_features_1NF: torch.Tensor, block_embeds_1KD: torch.Tensor, cache: list[int]) -> torch.Tensor:
        """As Drafter.propose; the rows must be the target's features of exactly the next positions."""
        start, anchor = cache[0], cache[0] + new_features_1NF.shape[1]
        torch.testing.assert_close(new_features_1NF[0], self.features_TF[start:anchor], rtol=1e-4, atol=1e-4)
        cache[0] = anchor
        return self._hidden_KD(anchor, block_embeds_1KD)[None]

    def forward(
        self,
        features_BTF: torch.Tensor,
        block_embeds_BAKD: torch.Tensor,
        anchors_BA: torch.Tensor,
        label_slots_only: bool = False,
    ) -> torch.Tensor:
        """As Drafter.forward."""
        self.num_anchors += anchors_BA.numel()
        rows = [
            torch.stack([self._hidden_KD(anchor, block_embeds_BAKD[b, i : i + 1]) for i, anchor in enumerate(anchors)])
            for b, anchors in enumerate(anchors_BA.tolist())
        ]
        return torch.stack(rows)[:, :, int(label_slots_only) :]

    def _hidden_KD(self, anchor: int, block_embeds_1KD: torch.Tensor) -> torch.Tensor:
        num_slots = block_embeds_1KD.shape[1]
        ids = torch.tensor([self.text[anchor]] + [MASK_ID] * (num_slots - 1), device=self.target.device)
        torch.testing.assert_close(block_embeds_1KD[0], self.target.embed(ids))
        wanted = [self.text[anchor + k] if anchor + k < len(self.text) else 0 for k in range(num_slots)]
        wrong = self.wrong(anchor)
        if wrong is not None and wrong < num_slots:
            wanted[wrong] = (wanted[wrong] + 1) % (VOCAB - 2)
        return self.table_VD[wanted]
