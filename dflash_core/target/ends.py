"""The two ends of the frozen target, embedding and LM head, with or without the layers between them.

Dims: D hidden, V vocab.
The drafter borrows both, so that every rank that trains or measures it needs them; only a rank that makes features needs
the layers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from dflash_core.config import TargetConfig
from dflash_core.errors import ConfigError
from dflash_core.target.stored import StoredModel


class TargetEnds(ABC):
    """Embedding and head of a causal LM that is never trained. `path` is the directory they came from."""

    def __init__(
        self, embedding: nn.Module, head_weight_VD: Tensor, config: PreTrainedConfig, path: Path, trust_remote_code: bool = False
    ) -> None:
        """Args: the modules as transformers builds them, and the text model's configuration."""
        self.path = path
        self.config = config
        self.head_weight_VD = head_weight_VD  # a bias, where there is one, fails the self-check
        self._embedding = embedding
        self._trust_remote_code = trust_remote_code

    @property
    def hidden_size(self) -> int:
        """D."""
        return self.config.hidden_size

    @property
    def num_layers(self) -> int:
        """Decoder layers of the whole target."""
        return self.config.num_hidden_layers

    @property
    def vocab_size(self) -> int:
        """V: rows of the embedding, often more than the tokenizer has tokens."""
        return self._embedding.weight.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, and of features."""
        return self._embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embedding.weight.device

    @property
    def embedding_scale(self) -> float:
        """What `embed` multiplies rows by: sqrt(D) in the Gemma family, else 1."""
        return float(getattr(self._embedding, "embed_scale", 1.0))

    @property
    def logit_softcap(self) -> float | None:
        """c of logits = c * tanh(head(h) / c), as in Gemma 2; None where logits aren't capped."""
        return getattr(self.config, "final_logit_softcapping", None)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer in the same directory, loaded at first use."""
        return AutoTokenizer.from_pretrained(self.path, trust_remote_code=self._trust_remote_code)

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [..., D] of ids [...], scaled as the target itself scales them."""
        return self._embedding(ids)

    @abstractmethod
    def decoder_layers(self, layer_ids: Sequence[int]) -> Iterator[nn.Module]:
        """These decoder layers in turn, with whole weights: to start a drafter from, not for a forward."""

    @property
    @abstractmethod
    def final_norm(self) -> nn.Module | None:
        """The norm before the head, None where the family has none of that name."""


class StoredEnds(TargetEnds):
    """Ends whose layers stay on disk: each is read when `decoder_layers` asks for it, and forgotten with its last reference."""

    def __init__(self, stored: StoredModel, trust_remote_code: bool = False) -> None:
        embedding, head_weight_VD = _read_ends(stored)
        super().__init__(
            embedding, head_weight_VD, stored.skeleton.config.get_text_config(decoder=True), stored.path, trust_remote_code
        )
        self._stored = stored

    def decoder_layers(self, layer_ids: Sequence[int]) -> Iterator[nn.Module]:
        layers = self._stored.skeleton.get_decoder().layers
        return (self._stored.filled(layers[i], partly=True) for i in layer_ids)

    @property
    def final_norm(self) -> nn.Module | None:
        norm = getattr(self._stored.skeleton.get_decoder(), "norm", None)
        return None if norm is None else self._stored.filled(norm)


def load_ends(config: TargetConfig) -> StoredEnds:
    """Read embedding and head of `config`'s target, on the GPU if there is one; bit-equal to those of `Target.load`.

    Raises:
        ConfigError: see `StoredModel` and its `tensor`.
    """
    return StoredEnds(StoredModel(config), config.trust_remote_code)


def _read_ends(stored: StoredModel) -> tuple[nn.Module, Tensor]:
    """The embedding as a module, since families scale it differently, and the head's weight; one storage where they are tied."""
    skeleton = stored.skeleton
    head = skeleton.get_output_embeddings()
    if head is None:
        raise ConfigError(
            f"{type(skeleton).__name__} in {stored.path} has no LM head; expected a causal language model. Correct target.path."
        )
    embedding = stored.filled(skeleton.get_input_embeddings())
    names = [f"{stored.name_of(module)}.weight" for module in (skeleton.get_input_embeddings(), head)]
    if stored.same_place(*names):
        return embedding, embedding.weight
    head_weight_VD = stored.tensor(names[1])
    # A tied head that is stored as well is one tensor only if the two are equal: transformers' own rule.
    tied = names[1] in skeleton.all_tied_weights_keys and torch.equal(head_weight_VD, embedding.weight)
    return embedding, embedding.weight if tied else head_weight_VD
