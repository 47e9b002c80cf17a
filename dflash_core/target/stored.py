"""Chosen modules of a target, filled from its safetensors files; the other tensors are never read.

A rank that only trains the drafter needs two tensors of the target (2.5 of Qwen3-8B's 16 GB), and the initial weights need
a few layers.
"""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from dflash_core.config import TargetConfig
from dflash_core.errors import ConfigError
from dflash_core.target.directory import read_target_config

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PLAIN_DTYPES = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True)
class _Place:
    file: Path
    key: str


class StoredModel:
    """A target's model without weights (on the meta device), and where each of its tensors is stored."""

    def __init__(self, config: TargetConfig) -> None:
        """Read the configuration and the names of the tensors.

        Raises:
            ConfigError: see `read_target_config`; no safetensors files, or damaged ones.
        """
        self.path = Path(config.path)
        model_config = read_target_config(self.path, config.trust_remote_code)
        with torch.device("meta"):
            self.skeleton: PreTrainedModel = AutoModelForCausalLM.from_config(
                model_config, dtype=getattr(torch, config.dtype), trust_remote_code=config.trust_remote_code
            ).eval()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._places = _places(self.path, self.skeleton)

    def name_of(self, module: nn.Module) -> str:
        """Full name of one of the skeleton's modules."""
        return next(name for name, other in self.skeleton.named_modules() if other is module)

    def tensor(self, name: str) -> Tensor:
        """One parameter or buffer by its name in the model, in the dtype that the loaded model has it in, on the device.

        Raises:
            ConfigError: no file has it, or it is quantised or of another shape.
        """
        if name not in self._places:
            raise ConfigError(
                f"the weights in {self.path} lack {name}; expected all of config.json's model. Complete the download."
            )
        place, empty = self._places[name], self.skeleton.get_parameter_or_buffer(name)
        with _naming_errors(self.path), safe_open(place.file, framework="pt") as file:
            stored = file.get_slice(place.key)
            dtype, shape = stored.get_dtype(), tuple(stored.get_shape())
            if dtype not in PLAIN_DTYPES or shape != tuple(empty.shape):
                raise ConfigError(
                    f"{place.key} in {place.file} is {dtype} {list(shape)}, expected {list(empty.shape)} in one of "
                    f"{', '.join(sorted(PLAIN_DTYPES))}. Use a target that isn't quantised, and files that belong to its config.json."
                )
            return stored[...].to(self.device, empty.dtype)

    def filled(self, module: nn.Module, partly: bool = False) -> nn.Module:
        """A copy of one of the skeleton's modules with its stored weights.

        Args:
            module: One of `skeleton.modules()`.
            partly: Leave parameters that no stored tensor holds by itself on the meta device (experts, which files keep apart).

        Raises:
            ConfigError: see `tensor`.
        """
        prefix, module = self.name_of(module), copy.deepcopy(module)
        for inner, part in module.named_modules():
            base = ".".join(filter(None, (prefix, inner)))
            for name in [name for name, _ in part.named_parameters(recurse=False)]:
                if not partly or f"{base}.{name}" in self._places:
                    part._parameters[name] = nn.Parameter(self.tensor(f"{base}.{name}"), requires_grad=False)
            self._set_buffers(part, base)
        return module

    def same_place(self, name: str, other: str) -> bool:
        """Whether two names are one stored tensor, as those of a tied head are."""
        return name in self._places and self._places[name] == self._places.get(other)

    def _set_buffers(self, part: nn.Module, base: str) -> None:
        """Buffers from the files, or what the family computes them to be (Gemma's scale of the embedding)."""
        names = [name for name, _ in part.named_buffers(recurse=False)]
        for name in names:
            stored = f"{base}.{name}" in self._places
            part._buffers[name] = (
                self.tensor(f"{base}.{name}") if stored else torch.empty_like(part._buffers[name], device=self.device)
            )
        if names:
            for tensor in (*part.parameters(recurse=False), *(part._buffers[n] for n in names if f"{base}.{n}" in self._places)):
                tensor._is_hf_initialized = True  # so that the family's initialiser sets the other buffers only
            self.skeleton._init_weights(part)


@contextmanager
def _naming_errors(path: Path) -> Iterator[None]:
    """Turns what a damaged file raises into an error that says what to do."""
    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"the weights in {path} can't be read: {reason}. Replace the damaged or missing files.") from None


def _places(path: Path, skeleton: PreTrainedModel) -> dict[str, _Place]:
    """Where each parameter lies, by its name in the model: transformers' own renaming, and its rule for tied weights."""
    conversions = get_model_conversion_mapping(skeleton)
    renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    prefix, names = skeleton.base_model_prefix, skeleton.state_dict()
    places: dict[str, _Place] = {}
    for key, file in _stored_keys(path).items():
        name, converter = rename_source_key(key, renamings, converters, prefix, names)
        if name not in names and key in names:
            name, converter = key, None
        if name in names and converter is None:
            places[name] = _Place(file, key)
    for name, source in skeleton.all_tied_weights_keys.items():  # either of the two may be the stored one
        for absent, present in ((name, source), (source, name)):
            if absent not in places and present in places:
                places[absent] = places[present]
    return places


def _stored_keys(path: Path) -> dict[str, Path]:
    """Name in the files -> file, from the index or the one file's header; a file that the index names need not exist."""
    single, index = path / SINGLE_FILE, path / INDEX_FILE
    with _naming_errors(path):
        if single.is_file():
            with safe_open(single, framework="pt") as file:
                return dict.fromkeys(file.keys(), single)
        if index.is_file():
            return {key: path / name for key, name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()}
    raise ConfigError(
        f"{path} holds neither {SINGLE_FILE} nor {INDEX_FILE}; expected weights as safetensors. "
        "Save the model again with save_pretrained, which writes them."
    )
