"""Scaled-down runs whose memory is dominated by one thing each, and their workspaces."""

import json
import random
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

WORDS = ("the", "people", "of", "that", "village", "walked", "along", "a", "river", "every", "morning", "with", "bread", "water")
RUN = "measured"


@dataclass(frozen=True)
class Preset:
    """A random target, conversations of `words` words, and settings of the run; `stored` is the dtype of the weight file."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    stored: str
    conversations: int
    words: tuple[int, int]
    settings: Mapping[str, Mapping[str, Any]]


def settings(
    dtype: str, precision: str, step: int, micro: int, anchors: int, layers: int, block: int, features: int,
    queue_depth: int = 2, **training: Any,
) -> dict[str, dict[str, Any]]:
    """The sections of a params.yaml that differ between presets."""
    return {
        "target": {"dtype": dtype},
        "bucket": {"multiple": 64, "tokens_per_step": step, "tokens_per_microbatch": micro},
        "drafter": {"num_layers": layers, "block_size": block, "num_features": features},
        "training": {"num_anchors": anchors, "precision": precision, **training},
        "distributed": {"queue_depth": queue_depth},
    }


# Shapes are chosen so that memory is large and the products few, for a machine without a GPU.
PRESETS = {
    # 443 M parameters in float32: the mapped file is the weights.
    "target": Preset(
        "qwen3", 1024, 4096, 28, 16, 4, 64, 8192, "float32", 20, (60, 120),
        settings("float32", "float32", 768, 384, 32, 1, 4, 3),
    ),
    # Stored in bfloat16 and run in float32: file and copy are resident together at the load.
    "target-converted": Preset(
        "llama", 1024, 4096, 20, 16, 4, 64, 8192, "bfloat16", 20, (60, 120),
        settings("float32", "float32", 768, 384, 32, 1, 4, 3),
    ),
    # 111 M trained parameters: 1.8 GB of weights, gradients and moments.
    "drafter": Preset(
        "qwen3", 1536, 6144, 6, 24, 8, 64, 4096, "bfloat16", 20, (60, 120),
        settings("bfloat16", "float32", 768, 384, 16, 3, 4, 3),
    ),
    "activations": Preset(
        "llama", 128, 384, 8, 8, 4, 16, 1024, "float32", 44, (200, 400),
        settings("float32", "float32", 16384, 9216, 512, 2, 16, 4),
    ),
    "activations-bf16": Preset(
        "qwen3", 192, 512, 8, 8, 4, 24, 1024, "bfloat16", 44, (200, 400),
        settings("bfloat16", "bfloat16", 16384, 9216, 512, 2, 16, 4),
    ),
    # Wide features of a cheap target: the drafter is the slower side, so that as many steps wait as the queue holds, which is
    # what the plan counts. Where the target is slower, one step is trained on and one in the making, whatever the depth.
    "features": Preset(
        "qwen3", 1024, 64, 11, 2, 1, 32, 1024, "float32", 32, (150, 250),
        settings("float32", "float32", 8192, 2048, 4, 1, 4, 8, queue_depth=1),
    ),
    "features-cached": Preset(
        "qwen3", 256, 256, 35, 8, 4, 32, 1024, "bfloat16", 128, (150, 250),
        settings("bfloat16", "float32", 32768, 2048, 4, 1, 4, 32, feature_source="cached"),
    ),
}  # fmt: skip


def make_workspace(preset: Preset, directory: Path, num_steps: int, seed: int) -> None:
    """Target, conversations, params.yaml, prepared data and plan."""
    from dflash_core.config import load_config
    from dflash_core.data.plan_manifest import write_plan
    from dflash_core.data.prepare import prepare
    from dflash_core.stages import layout

    make_target(preset, directory / "target", seed)
    draw = random.Random(seed)
    rows = [conversation(number, draw.choices(WORDS, k=draw.randint(*preset.words))) for number in range(preset.conversations)]
    (directory / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tree: dict[str, Any] = {
        "run": RUN,
        "data": {"conversations": ["conversations.jsonl"], "heldout_fraction": 0.1, "max_length": 1024},
        "checkpoint": {"every": 1, "keep_last": 2},
        "evaluation": {"num_walk_prompts": 4, "max_new_tokens": 64},
    } | {name: dict(section) for name, section in preset.settings.items()}
    tree["target"]["path"] = "target"
    tree["training"] |= {"epochs": num_steps, "max_steps": num_steps}
    (directory / "params.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    with chdir(directory):  # the stages take their paths from the working directory
        config = load_config(Path("params.yaml"))
        prepare(config, layout.PREPARED)
        write_plan(config, layout.PREPARED, layout.PLAN)


def conversation(number: int, words: list[str]) -> dict[str, Any]:
    """One question and its answer."""
    turns = [{"role": "user", "content": f"Tell {number}."}, {"role": "assistant", "content": " ".join(words)}]
    return {"id": f"c{number}", "messages": turns}


def make_target(preset: Preset, directory: Path, seed: int) -> None:
    """Random weights in safetensors, with a tokenizer of 500 tokens; its other rows are spare."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from dflash_core.target.tiny import make_tiny_tokenizer

    tokenizer = make_tiny_tokenizer()
    config = AutoConfig.for_model(
        preset.family, vocab_size=preset.vocab, hidden_size=preset.hidden, intermediate_size=preset.intermediate,
        num_hidden_layers=preset.layers, num_attention_heads=preset.heads, num_key_value_heads=preset.kv_heads,
        head_dim=preset.head_dim, max_position_embeddings=4096, tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, preset.stored))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
