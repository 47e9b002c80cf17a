"""A workspace as a finished training leaves it, made from files alone: what a promotion reads."""

import json
import shutil
from pathlib import Path
from typing import Any

from dflash_core.config import parse_config
from tasks.workspace import Workspace

PROMPTS = 40
STRONG, EQUAL, WEAK = 3, 2, 1  # tokens of each round


def export_drafter(directory: Path, seed: int) -> Path:
    """A random drafter in z-lab's layout; the seed stands for a training."""
    import torch

    from dflash_core.checkpoint.export import export_zlab
    from dflash_core.drafter.model import Drafter
    from dflash_core.drafter.spec import DrafterSpec

    torch.manual_seed(seed)
    spec = DrafterSpec(
        hidden_size=16, intermediate_size=24, num_heads=2, num_kv_heads=1, head_dim=8, num_layers=1, block_size=4, mask_token_id=62,
        target_layer_ids=(0, 1), num_target_layers=3, vocab_size=64, rope_theta=1e4, layer_types=(), sliding_window=None,
        max_position_embeddings=128,
    )  # fmt: skip
    lineage = {"status": "proven", "run": "mine", "run_id": f"run{seed}", "step": 2, "checkpoint_digest": f"digest{seed}", "dataset": "d" * 64}
    export_zlab(Drafter(spec).state_dict(), spec, "models/toy", directory, lineage)
    return directory


def promotable(root: Path) -> Workspace:
    """A workspace that was made before."""
    tree = {"run": "mine", "target": {"path": "models/toy"}, "data": {"conversations": ["a.jsonl"]}}
    return Workspace(root=root, config=parse_config(tree, "test"))


def make_promotable(root: Path, exported: Path, tokens: int, seed: int) -> Workspace:
    """A workspace whose drafter commits `tokens` a round, a little more or less from prompt to prompt."""
    place = promotable(root)
    for directory in (place.log_file.parent, root / "build/evaluation", root / "build/data_gate"):
        directory.mkdir(parents=True)
    shutil.copytree(exported, root / "build/drafter")
    write(root / "build/train.json", {"run_id": f"run{seed}", "checkpoint": "runs/mine/checkpoints/step-00000002"})
    proof = {"name": "step-00000002", "outcome": "proven", "sound": True, "fault": None, "digest": f"digest{seed}", "reason": "Equal.", "step": 2}
    write(root / "build/proof.json", {"run_id": f"run{seed}", "last": "step-00000002", "checkpoints": [proof]})
    write(root / "build/data_gate/verdict.json", {"passed": True, "dataset": "d" * 64})
    write(root / "build/evaluation/evaluation.json", evaluation(tokens, seed))
    write(root / "dvc.lock", {"stages": {"prove": {"outs": [{"path": "build/drafter", "md5": f"{seed:032d}.dir"}]}}})
    (root / "params.yaml").write_text("data: {conversations: [a.jsonl]}\n")
    place.log_file.write_text("".join(json.dumps(record) + "\n" for record in log(seed)))
    return place


def evaluation(tokens: int, seed: int, dtype: str = "float32", settings: int = 64) -> dict[str, Any]:
    """As the stage writes it, of what is read of it."""
    rows = [[10 + (p + seed) % 3 if size == tokens else (p % 2) for size in (1, 2, 3, 4)] for p in range(PROMPTS)]
    num_rounds, num_tokens = sum(map(sum, rows)), sum(size * n for row in rows for size, n in enumerate(row, start=1))
    return {
        "subjects": {"drafter_lineage": {"checkpoint_digest": f"digest{seed}"}, "target_identity": "t" * 64, "dtype": dtype, "max_new_tokens": settings},
        "acceptance": {"tau": num_tokens / num_rounds, "tau_low": 1.0, "tau_high": 4.0},
        "outputs": {"num_prompts": PROMPTS, "num_different": 0, "num_equal": PROMPTS, "num_ties": 0},
        "prompts": [{"sample_id": f"p{i}", "num_tokens": 30, "rounds": [size for size, n in enumerate(row, start=1) for _ in range(n)]} for i, row in enumerate(rows)],
    }


def log(seed: int) -> list[dict[str, Any]]:
    """A short run that goes well."""
    shared = {"run_id": f"run{seed}", "session_id": "s"}
    start = {"kind": "start", **shared, "step": 0, "wall_time": 1000.0, "config": {"run": "mine"}, "identity": {"target": "t" * 64}}
    steps = [
        {"kind": "step", **shared, "step": s, "wall_time": 1000.0 + s, "loss": 4.0 - s / 50 + s % 3 / 100, "loss_sum": 1.0, "grad_norm": 1.0, "lr": 1e-3}
        for s in range(1, 41)
    ]
    return [start, *steps, {"kind": "stop", **shared, "step": 40, "wall_time": 1100.0, "reason": "finished", "message": ""}]


def write(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree))


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    write(path, json.loads(path.read_text()) | values)
