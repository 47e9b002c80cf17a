"""Tiny float32 targets of several families, drafters on them, and an oracle drafter of chosen acceptance."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from oracle_drafter import FirstMiss, OracleDrafter
from tiny_families import BLOCK, FAMILIES, HIDDEN, LAYERS, MASK_ID, VOCAB, randomised, save_target

from dflash_core.checkpoint.export import export_zlab
from dflash_core.config import TargetConfig, parse_config
from dflash_core.data.identity import target_identity
from dflash_core.data.prepare import prepare
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec, from_target
from dflash_core.target.model import Target
from dflash_core.target.tiny import make_tiny_target


@pytest.fixture(scope="session")
def target_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved targets by family."""
    root = tmp_path_factory.mktemp("targets")
    return {family: save_target(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The makers below, for the tests of this folder."""
    return SimpleNamespace(
        make_spec=make_spec, random_drafter=random_drafter, prompts=prompts, OracleDrafter=oracle, BLOCK=BLOCK, VOCAB=VOCAB
    )


@pytest.fixture(scope="session", params=list(FAMILIES))
def target(request: pytest.FixtureRequest, target_dirs: dict[str, Path]) -> Target:
    """The target of each family in turn."""
    return Target.load(TargetConfig(path=str(target_dirs[request.param]), dtype="float32"))


@pytest.fixture(scope="session")
def llama(target_dirs: dict[str, Path]) -> Target:
    """One target, where the family doesn't matter."""
    return Target.load(TargetConfig(path=str(target_dirs["llama"]), dtype="float32"))


def conversations(path: Path) -> Path:
    """Twelve short chats of three categories, a half held out."""
    rows = [
        {
            "id": f"row-{i}", "category": ("list", "story", "code")[i % 3], "split": "heldout" if i % 2 else "train",
            "messages": [
                {"role": "user", "content": f"What is number {i} for a train in the village {i * 7}?"},
                {"role": "assistant", "content": f"The answer {i} is the small boat at the edge of the water, number {i * 31}."},
            ],
        }
        for i in range(12)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A working directory with target, prepared data and an exported random drafter."""
    root = tmp_path_factory.mktemp("world")
    make_tiny_target(root / "target", seed=0)
    tree = {
        "target": {"path": str(root / "target"), "dtype": "float32"},
        "data": {"conversations": [str(conversations(root / "rows.jsonl"))], "max_length": 256},
        "drafter": {"num_layers": 2, "block_size": 4, "num_features": 2},
        "evaluation": {"num_prompts": 5, "max_new_tokens": 12, "num_walk_prompts": 4, "bootstrap_samples": 50, "num_generate_prompts": 1},
    }
    config = parse_config(tree, "test")
    prepare(config, root / "prepared")
    target = Target.load(config.target)
    torch.manual_seed(0)
    drafter = Drafter(from_target(target.config, config.drafter, 505))
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter) + (parameter.dim() == 1))
    lineage = {"target_identity": target_identity(root / "target")}
    export_zlab(drafter.state_dict(), drafter.spec, "target", root / "drafter", lineage)
    return SimpleNamespace(root=root, config=config, target=target, drafter=drafter, lineage=lineage)


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
    return randomised(Drafter(make_spec(sliding=sliding)).eval())


def prompts(count: int, longest: int = 24, seed: int = 5) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens; the first has a single token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [1, *torch.randint(2, longest + 1, (count - 1,), generator=generator).tolist()]
    return [torch.randint(0, VOCAB - 2, (length,), generator=generator).tolist() for length in lengths]


def oracle(target: Target, text: Sequence[int], wrong: FirstMiss) -> OracleDrafter:
    """An oracle drafter of the usual block."""
    return OracleDrafter(target, text, wrong, BLOCK)
