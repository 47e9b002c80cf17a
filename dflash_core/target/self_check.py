"""Checks, on a few real tokens, that the features are the target's own hidden states and that its head is understood.

Dims: B batch rows, T tokens, D hidden, F features width, V vocab.
A wrong layer costs only a few per cent of acceptance and so never looks broken; it has to be looked for before training.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.errors import IdentityError
from dflash_core.target.layers import check_layer_ids
from dflash_core.target.model import Target

# Largest relative error (of the Frobenius norm) between two computations of the same numbers. bf16 keeps 8 bits and
# the errors of 30 layers add up; the outputs of neighbouring layers, or hidden states before and after a norm, differ by more
# than 0.1.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}
NORM_RANGE = (1e-4, 1e6)  # of one row; massive activations of real models reach 1e4


@torch.no_grad()
def self_check(target: Target, layer_ids: Sequence[int], ids: Tensor) -> None:
    """Hold features, embeddings, logits and the cached forward against a plain forward of the whole model.

    Args:
        target: The target.
        layer_ids: The layers that the drafter will read.
        ids: int64 [B, T] or [T], T >= 4: real tokens without padding.

    Raises:
        ConfigError: see `check_layer_ids`.
        IdentityError: a value differs from the plain forward's, or features can't carry information.
    """
    layer_ids = check_layer_ids(layer_ids, target.num_layers)
    ids_BT = torch.atleast_2d(torch.as_tensor(ids, dtype=torch.int64)).to(target.device)
    plain = target.model(input_ids=ids_BT, output_hidden_states=True, use_cache=False)
    states = plain.hidden_states
    if len(states) != target.num_layers + 1:
        raise _refused(target, "number of hidden states", len(states), target.num_layers + 1)
    features_BTF = target.features(ids_BT, layer_ids)
    expected_shape = (*ids_BT.shape, len(layer_ids) * target.hidden_size)
    if tuple(features_BTF.shape) != expected_shape:
        raise _refused(target, "shape of the features", tuple(features_BTF.shape), expected_shape)
    for layer_id, feature_BTD in zip(layer_ids, features_BTF.split(target.hidden_size, dim=-1), strict=True):
        _check_rows(target, layer_id, feature_BTD)
        _check_equal(target, f"features of layer {layer_id}", feature_BTD, states[layer_id + 1])
    _check_equal(target, "embeddings", target.embed(ids_BT), states[0])
    _check_equal(target, "logits rebuilt from the final norm", _rebuilt_logits(target, states[-1]), plain.logits)
    half = ids_BT.shape[1] // 2
    _, first_BTF, cache = target.forward_cached(ids_BT[:, :half], None, layer_ids)
    logits_BTV, second_BTF, _ = target.forward_cached(ids_BT[:, half:], cache, layer_ids)
    _check_equal(target, "features with a cache", torch.cat([first_BTF, second_BTF], dim=1), features_BTF)
    _check_equal(target, "logits with a cache", logits_BTV, plain.logits[:, half:])


def _rebuilt_logits(target: Target, normed_BTD: Tensor) -> Tensor:
    logits_BTV = normed_BTD @ target.head_weight_VD.T
    cap = target.logit_softcap
    return logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)


def _check_rows(target: Target, layer_id: int, feature_BTD: Tensor) -> None:
    rows_ND = feature_BTD.float().flatten(0, 1)
    norms_N = rows_ND.norm(dim=-1)
    low, high = norms_N.min().item(), norms_N.max().item()
    if not (torch.isfinite(norms_N).all() and NORM_RANGE[0] < low and high < NORM_RANGE[1]):
        raise _refused(target, f"norms of layer {layer_id}'s features", f"{low:.3g} to {high:.3g}", f"{NORM_RANGE[0]} to {NORM_RANGE[1]:g}")
    spread = rows_ND.std(dim=-1).min().item()
    if spread == 0.0:
        raise _refused(target, f"spread within a row of layer {layer_id}'s features", spread, "more than 0")
    if len(rows_ND) > 1 and torch.equal(rows_ND, rows_ND[:1].expand_as(rows_ND)):
        raise _refused(target, f"features of layer {layer_id}", "the same row at every token", "different rows")


def _check_equal(target: Target, what: str, found: Tensor, expected: Tensor) -> None:
    error = ((found.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-20)).item()
    tolerance = TOLERANCE[target.dtype]
    if not error <= tolerance:
        raise _refused(target, f"{what}, against a plain forward,", f"a relative error of {error:.3g}", f"at most {tolerance}")


def _refused(target: Target, what: str, found: object, expected: object) -> IdentityError:
    return IdentityError(
        f"the target {target.path} ({target.config.model_type}) fails the self-check: {what}: found {found}, expected {expected}. "
        "Its family isn't supported as it is; use another target, or float32 if its weights overflow in this dtype."
    )
