"""Which target layers are captured: the z-lab rule, and the check of ids that a person chose."""

from collections.abc import Sequence
from itertools import pairwise

from dflash_core.errors import ConfigError


def build_target_layer_ids(num_target_layers: int, num_features: int) -> tuple[int, ...]:
    """0-based decoder layers spread evenly from the second to the third-to-last (z-lab `build_target_layer_ids`).

    36 layers, 5 features: (1, 9, 17, 25, 33). One feature: the middle layer.

    Raises:
        ConfigError: the target has too few layers for so many different ids.
    """
    if num_features == 1:
        ids: tuple[int, ...] = (num_target_layers // 2,)
    else:
        start, end = 1, num_target_layers - 3
        ids = tuple(round(start + i * (end - start) / (num_features - 1)) for i in range(num_features))
    if len(set(ids)) < num_features or list(ids) != sorted(ids) or ids[-1] > num_target_layers - 2:
        raise ConfigError(
            f"drafter.num_features is {num_features}, but a target of {num_target_layers} layers has at most "
            f"{max(1, num_target_layers - 3)} by the layer rule. Lower it, or set drafter.target_layer_ids."
        )
    return ids


def check_layer_ids(layer_ids: Sequence[int], num_target_layers: int) -> tuple[int, ...]:
    """The ids as a tuple, where they ascend and lie in 0 .. num_target_layers - 2.

    The last layer can't be captured: transformers' hidden_states[num_layers] is taken after the final norm, so engines
    that read features from there would feed the drafter something else than it was trained on.

    Raises:
        ConfigError: no ids, an id out of range, or not strictly ascending.
    """
    ids = tuple(layer_ids)
    if not ids or any(not 0 <= i <= num_target_layers - 2 for i in ids) or any(a >= b for a, b in pairwise(ids)):
        raise ConfigError(
            f"target layer ids are {ids}, expected ascending ids from 0 to {num_target_layers - 2} for a target of "
            f"{num_target_layers} layers (the last layer's output is only seen after the final norm). "
            "Correct drafter.target_layer_ids."
        )
    return ids
