"""The frozen target: embeddings, chosen hidden states and, for decoding, logits with a cache.

Dims: B batch rows, T tokens (padded on the right), D hidden, F features width (captured layers * D), V vocab.
Features cost only the layers up to the last captured one, and no LM head: for SmolLM2's (1, 9, 17, 25...) the head alone
is a fifth of a forward.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Cache,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from dflash_core.config import TargetConfig
from dflash_core.errors import ConfigError
from dflash_core.target.directory import read_target_config
from dflash_core.target.layers import check_layer_ids


class Target:
    """A causal LM of transformers that is never trained. `path` is the directory it came from."""

    def __init__(self, model: PreTrainedModel, path: Path, trust_remote_code: bool = False) -> None:
        self.model = model.eval().requires_grad_(False)
        self.path = path
        self._trust_remote_code = trust_remote_code
        self._decoder = _decoder_of(model, path)
        self._views: dict[int, nn.Module] = {}

    @classmethod
    def load(cls, config: TargetConfig) -> "Target":
        """Load the target of `config`, on the GPU if there is one.

        Raises:
            ConfigError: see `read_target_config`, or weights that don't fit config.json.
        """
        path = Path(config.path)
        read_target_config(path, config.trust_remote_code)
        transformers_logging.disable_progress_bar()  # a bar for a load of a second hides the stage's own line
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                path, dtype=getattr(torch, config.dtype), trust_remote_code=config.trust_remote_code, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"the weights in {path} can't be loaded: {reason}. Replace the damaged or foreign files.") from None
        if info["missing_keys"]:  # transformers would leave them at random values, with no more than a warning
            raise ConfigError(
                f"the weights in {path} lack {len(info['missing_keys'])} tensors of config.json's model, among them "
                f"{min(info['missing_keys'])}; expected all. Complete the download."
            )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(model.to(device), path, config.trust_remote_code)

    @property
    def config(self) -> PreTrainedConfig:
        """The text model's configuration."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def hidden_size(self) -> int:
        """D."""
        return self.config.hidden_size

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return self.config.num_hidden_layers

    @property
    def vocab_size(self) -> int:
        """V: rows of the embedding, often more than the tokenizer has tokens."""
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, and of features."""
        return self.model.get_input_embeddings().weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.get_input_embeddings().weight.device

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer in the same directory, loaded at first use."""
        return AutoTokenizer.from_pretrained(self.path, trust_remote_code=self._trust_remote_code)

    @property
    def head_weight_VD(self) -> Tensor:
        """Weight of the LM head, [V, D]. A bias, where there is one, fails the self-check."""
        return self.model.get_output_embeddings().weight

    @property
    def logit_softcap(self) -> float | None:
        """c of logits = c * tanh(head(h) / c), as in Gemma 2; None where logits aren't capped."""
        return getattr(self.config, "final_logit_softcapping", None)

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [..., D] of ids [...], scaled as the target itself scales them."""
        return self.model.get_input_embeddings()(ids)

    @torch.no_grad()
    def features(self, input_ids_BT: Tensor, layer_ids: Sequence[int]) -> Tensor:
        """Outputs of the layers `layer_ids`, concatenated in that order: [B, T, F] in the target's dtype.

        Equal to hidden_states[id + 1] of a plain forward. Attention is causal, so right padding needs no mask: rows of
        padded positions are meaningless and all others are unaffected.

        Raises:
            ConfigError: see `check_layer_ids`.
        """
        ids = check_layer_ids(layer_ids, self.num_layers)
        with self._capture(ids) as captured, torch.autocast(self.device.type, enabled=False):
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
        with self._capture(ids) as captured, torch.autocast(self.device.type, enabled=False):
            logits_BTV = self.model(input_ids=ids_BT, cache=cache, use_cache=True).logits
        nothing = logits_BTV.new_empty(*ids_BT.shape, 0, dtype=self.dtype)
        return logits_BTV, torch.cat([nothing, *(captured[i] for i in ids)], dim=-1), cache

    def new_cache(self) -> DynamicCache:
        """An empty cache for `forward_cached`. To crop past a sliding window, call its layers' activate_past_recording first."""
        return DynamicCache(config=self.model.config)

    @contextmanager
    def _capture(self, layer_ids: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
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
