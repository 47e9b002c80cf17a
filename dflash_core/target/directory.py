"""Checks a target's directory before any weight is read."""

from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dflash_core.errors import ConfigError

WEIGHT_GLOBS = ("*.safetensors", "*.bin")


def read_target_config(directory: Path, trust_remote_code: bool = False) -> PreTrainedConfig:
    """config.json of a decoder-only target whose weights are there.

    Raises:
        ConfigError: as `read_architecture`, or no weight files.
    """
    config = read_architecture(directory, trust_remote_code)
    if not any(next(directory.glob(pattern), None) for pattern in WEIGHT_GLOBS):
        raise ConfigError(f"{directory} holds no weights; expected *.safetensors beside config.json. Complete the download.")
    return config


def read_architecture(directory: Path, trust_remote_code: bool = False) -> PreTrainedConfig:
    """config.json of a decoder-only target, whether its weights are there or not.

    Raises:
        ConfigError: no such directory, no config.json, a model type transformers doesn't know, an encoder-decoder model,
            or a model without a language-model head.
    """
    if not directory.is_dir():
        raise ConfigError(f"target.path {directory} is not a directory; expected a model in transformers' format. Correct target.path.")
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory} holds no config.json; expected a model in transformers' format. Correct target.path.")
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    except (ValueError, OSError, KeyError, AttributeError, TypeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{directory}/config.json can't be used: {reason}. Use a model that this transformers knows.") from None
    known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or (trust_remote_code and hasattr(config, "auto_map"))
    if getattr(config, "is_encoder_decoder", False) or not known:
        kind = "an encoder-decoder model" if getattr(config, "is_encoder_decoder", False) else "no causal language model"
        raise ConfigError(f"{directory} holds {config.model_type}, {kind}; expected a decoder-only one. Correct target.path.")
    return config
