"""The self-check passes every supported family and refuses targets that would train a broken drafter."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from dflash_core.errors import ConfigError, IdentityError
from dflash_core.target.layers import build_target_layer_ids
from dflash_core.target.model import Target
from dflash_core.target.self_check import self_check

ModelMaker = Callable[..., PreTrainedModel]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_passes_supported_families(family: str, dtype: torch.dtype, make_model: ModelMaker, ids_BT: torch.Tensor) -> None:
    self_check(Target(make_model(family).to(dtype), Path(family)), (0, 2, 3), ids_BT)


def test_takes_one_sequence(llama: Target, ids_BT: torch.Tensor) -> None:
    self_check(llama, (1, 3), ids_BT[0])


class _OtherLayer(Target):
    """Captures the layer above the one asked for, as engines with ids counted from one do."""

    def features(self, input_ids_BT, layer_ids):
        return super().features(input_ids_BT, [i + 1 for i in layer_ids])


def test_refuses_a_neighbouring_layer(llama: Target, ids_BT: torch.Tensor) -> None:
    with pytest.raises(IdentityError, match=r"features of layer 0, against a plain forward.*expected at most"):
        self_check(_OtherLayer(llama.model, llama.path), (0, 2), ids_BT)


def test_refuses_a_biased_head(make_model: ModelMaker, ids_BT: torch.Tensor) -> None:
    model = make_model("phi")
    nn.init.constant_(model.lm_head.bias, 1.0)
    with pytest.raises(IdentityError, match="logits rebuilt from the final norm"):
        self_check(Target(model, Path("phi")), (0, 2), ids_BT)


def test_refuses_a_logit_scale_it_does_not_know(llama: Target, ids_BT: torch.Tensor) -> None:
    llama.model.lm_head.register_forward_hook(lambda _module, _inputs, output: output * 0.5)
    with pytest.raises(IdentityError, match="logits rebuilt from the final norm"):
        self_check(llama, (0, 2), ids_BT)


@pytest.mark.parametrize(("value", "reason"), [(0.0, "norms"), (1.0, "spread within a row"), (float("nan"), "norms"), (1e9, "norms")])
def test_refuses_features_without_information(value: float, reason: str, llama: Target, ids_BT: torch.Tensor) -> None:
    llama.model.model.layers[2].register_forward_hook(lambda _module, _inputs, output: torch.full_like(output, value))
    with pytest.raises(IdentityError, match=f"{reason}.* of layer 2's features"):
        self_check(llama, (0, 2), ids_BT)


def test_refuses_rows_that_are_all_alike(llama: Target, ids_BT: torch.Tensor) -> None:
    llama.model.model.layers[2].register_forward_hook(lambda _module, _inputs, output: output[:1, :1].expand_as(output))
    with pytest.raises(IdentityError, match="the same row at every token"):
        self_check(llama, (0, 2), ids_BT)


@pytest.mark.parametrize(
    ("num_layers", "num_features", "expected"),
    [(36, 5, (1, 9, 17, 25, 33)), (24, 5, (1, 6, 11, 16, 21)), (64, 5, (1, 16, 31, 46, 61)), (30, 5, (1, 8, 14, 20, 27)), (30, 1, (15,))],
)
def test_layer_rule_gives_the_published_ids(num_layers: int, num_features: int, expected: tuple[int, ...]) -> None:
    assert build_target_layer_ids(num_layers, num_features) == expected


@pytest.mark.parametrize(("num_layers", "num_features"), [(6, 4), (4, 2), (3, 2), (1, 1)])
def test_layer_rule_refuses_more_features_than_layers(num_layers: int, num_features: int) -> None:
    with pytest.raises(ConfigError, match=f"num_features is {num_features}, but a target of {num_layers} layers"):
        build_target_layer_ids(num_layers, num_features)
