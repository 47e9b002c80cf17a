"""The frozen target: embeddings, chosen hidden states and, for decoding, logits with a cache.

Dims: B batch rows, T tokens (padded on the right), D hidden, F features width (captured layers * D), V vocab.
Features cost only the layers up to the last captured one, and no LM head: for SmolLM2's (1, 9, 17, 25...) the head alone
is a fifth of a forward.
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Cache, DynamicCache, PreTrainedModel
from transformers.utils import logging as transformers_logging

from dflash_core.config import TargetConfig
from dflash_core.errors import ConfigError
from dflash_core.target.directory import read_target_config
from dflash_core.target.ends import TargetEnds
from dflash_core.target.layers import check_layer_ids


class Target(TargetEnds):
    """A causal LM of transformers that is never trained. `path` is the directory it came from."""

    def __init__(self, model: PreTrainedModel, path: Path, trust_remote_code: bool = False) -> None:
        self.model = model.eval().requires_grad_(False)
        text_config = model.config.get_text_config(decoder=True)
        super().__init__(model.get_input_embeddings(), model.get_output_embeddings().weight, text_config, path, trust_remote_code)
        self._decoder = _decoder_of(model, path)
        self._views: dict[int, nn.Module] = {}
        self.can_keep_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @classmethod
    def load(cls, config: TargetConfig) -> "Target":
        """Load the target of `config`, on the GPU if there is one.

        Raises:
            ConfigError: see `read_target_config`, or weights that don't fit config.json.
        """
        read_target_config(Path(config.path), config.trust_remote_code)
        model = load_model(AutoModelForCausalLM, config)
        return cls(model.to("cuda" if torch.cuda.is_available() else "cpu"), Path(config.path), config.trust_remote_code)

    def decoder_layers(self, layer_ids: Sequence[int]) -> Iterator[nn.Module]:
        return (self._decoder.layers[i] for i in layer_ids)

    @property
    def final_norm(self) -> nn.Module | None:
        return getattr(self._decoder, "norm", None)

    @torch.no_grad()
    def features(self, input_ids_BT: Tensor, layer_ids: Sequence[int]) -> Tensor:
        """Outputs of the layers `layer_ids`, concatenated in that order: [B, T, F] in the target's dtype.

        Equal to hidden_states[id + 1] of a plain forward. Attention is causal, so right padding needs no mask: rows of
        padded positions are meaningless and all others are unaffected.

        Raises:
            ConfigError: see `check_layer_ids`.
        """
        ids = check_layer_ids(layer_ids, self.num_layers)
        with self.capture(ids) as captured, without_autocast(self.device.type):
            self._view(ids[-1] + 1)(input_ids=input_ids_BT, use_cache=False)
        return torch.cat([captured[i] for i in ids], dim=-1)

    @torch.no_grad()
    def forward_cached(self, ids_BT: Tensor, cache: Cache | None, layer_ids: Sequence[int]) -> tuple[Tensor, Tensor, Cache]:
        """One decoding step of the whole model: logits_BTV, features_BTF (F = 0 without ids), and the extended cache.

        Args:
            ids_BT: Tokens after those in the cache; no padding.
            cache: From `new_cache` or an earlier call; None starts an empty one. It is changed in place.
            layer_ids: As for `features`; may be empty.
        """
        ids = check_layer_ids(layer_ids, self.num_layers) if layer_ids else ()
        cache = self.new_cache() if cache is None else cache
        with self.capture(ids) as captured, without_autocast(self.device.type):
            logits_BTV = self.model(input_ids=ids_BT, cache=cache, use_cache=True).logits
        nothing = logits_BTV.new_empty(*ids_BT.shape, 0, dtype=self.dtype)
        return logits_BTV, torch.cat([nothing, *(captured[i] for i in ids)], dim=-1), cache

    def new_cache(self) -> DynamicCache:
        """An empty cache for `forward_cached`."""
        return DynamicCache(config=self.model.config)

    @contextmanager
    def capture(self, layer_ids: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
        """Outputs of these layers in the newest forward, by layer, while the context lasts."""
        captured: dict[int, Tensor] = {}

        def keep(layer_id: int):
            def hook(_module: nn.Module, _inputs: tuple, output: Tensor | tuple[Tensor, ...]) -> None:
                captured[layer_id] = output[0] if isinstance(output, tuple) else output

            return hook

        handles = [self._decoder.layers[i].register_forward_hook(keep(i)) for i in layer_ids]
        try:
            yield captured
        finally:
            for handle in handles:
                handle.remove()

    def _view(self, depth: int) -> nn.Module:
        """The decoder with its first `depth` layers only; modules are shared, the configuration (and so each mask) is the same."""
        if depth not in self._views:
            view = copy.copy(self._decoder)
            view._modules = dict(self._decoder._modules)  # copy.copy shares this dict, and the layers must differ
            view.layers = self._decoder.layers[:depth]
            self._views[depth] = view
        return self._views[depth]


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """The target's own dtype, also within a training step.

    Nothing where autocast is off: leaving torch.autocast empties the cache of cast weights, which all threads share. The
    target works in a thread of its own, and a drafter's forward that finds its casts gone makes them again: its gradient is
    then added up in two parts, and no two runs in bfloat16 were the same.
    """
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


def load_model(model_class: type, config: TargetConfig, /, **how: Any) -> PreTrainedModel:
    """`model_class.from_pretrained` of the target's directory in its dtype; `how` goes to it as well.

    Raises:
        ConfigError: weights that don't fit config.json, or damaged ones.
    """
    transformers_logging.disable_progress_bar()  # a bar for a load of a second hides the stage's own line
    try:
        model, info = model_class.from_pretrained(
            config.path, dtype=getattr(torch, config.dtype), trust_remote_code=config.trust_remote_code, output_loading_info=True, **how
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"the weights in {config.path} can't be loaded: {reason}. Replace the damaged or foreign files.") from None
    if info["missing_keys"]:  # transformers would leave them at random values, with no more than a warning
        raise ConfigError(
            f"the weights in {config.path} lack {len(info['missing_keys'])} tensors of config.json's model, among them "
            f"{min(info['missing_keys'])}; expected all. Complete the download."
        )
    return model


def _decoder_of(model: PreTrainedModel, path: Path) -> nn.Module:
    decoder, expected = model.get_decoder(), model.config.get_text_config(decoder=True).num_hidden_layers
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != expected:
        found = f"{len(layers)} of them" if isinstance(layers, nn.ModuleList) else "none"
        raise ConfigError(
            f"{type(model).__name__} in {path} has {found} under `layers`, expected its {expected} decoder layers there. "
            "Use a target of the Llama, Qwen, Mistral, Gemma or Phi families, or one built like them."
        )
    return decoder
