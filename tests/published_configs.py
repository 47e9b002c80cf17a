"""config.json of published models, the keys that sizes follow from; the numbers are facts of the models' own files.

Qwen/Qwen3-8B, Qwen/Qwen3-4B and meta-llama/Llama-3.1-8B-Instruct on huggingface.co, file config.json.
"""

import json
from pathlib import Path
from typing import Any

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "attention_bias": False,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "torch_dtype": "bfloat16",
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen3-8b": QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
    "qwen3-4b": QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "llama3.1-8b-instruct": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    },
}  # fmt: skip
# Parameters as their makers count them: 8.19 B, 4.02 B and 8.03 B.
NUM_PARAMETERS = {"qwen3-8b": 8_190_735_360, "qwen3-4b": 4_022_468_096, "llama3.1-8b-instruct": 8_030_261_248}


def write_published(directory: Path, name: str) -> Path:
    """A directory that holds this config.json and nothing else."""
    target = directory / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(PUBLISHED[name]), encoding="utf-8")
    return target
