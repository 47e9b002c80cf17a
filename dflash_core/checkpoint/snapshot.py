"""Takes a rank's share of a training state, and puts a whole one back exactly.

Anchors and feature noise are functions of (seed, epoch, sample id) and the learning rate one of the step, so
`next_sample` is all the progress there is. The global generators are saved too, although nothing in the loop
draws from them today: a later part that does must not break the resume silently.
"""

import base64
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dflash_core.checkpoint.contents import Contents, Piece, Share
from dflash_core.distributed.gradients import first_row, full, like
from dflash_core.errors import CheckpointError, IdentityError

_MOMENT_KEYS = ("step", "exp_avg", "exp_avg_sq")


def take_share(
    drafter: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    next_sample: int,
    run_id: str,
    identity: Mapping[str, Any],
    index: int = 0,
    count: int = 1,
) -> Share:
    """What drafter rank `index` of the `count` that save together has of the live state; no rank is asked for anything.

    Of shards each rank has its own rows; whatever isn't sharded is the first rank's.
    """
    weights, moments = (_own_pieces(part, index) for part in state_tensors(drafter, optimizer))
    progress = {"step": step, "next_sample": next_sample, "run_id": run_id, "identity": dict(identity)}
    state = {} if index else progress | {"generators": _generators()}
    return Share(step, weights, moments, state, index, count)


def _own_pieces(tensors: Mapping[str, torch.Tensor], index: int) -> dict[str, Piece]:
    pieces = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            rows = tensor.to_local()
            if len(rows):  # more ranks than rows leave some without any
                pieces[name] = Piece(rows, first_row(tensor), tuple(tensor.shape))
        elif index == 0:
            pieces[name] = Piece.whole(tensor)
    return pieces


def state_tensors(drafter: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Live weights and moments; moments go by the parameter's name, so that another order of parameters doesn't mix them up."""
    named = ((name, optimizer.state[param]) for name, param in drafter.named_parameters() if param in optimizer.state)
    return drafter.state_dict(), {f"{name}.{key}": state[key] for name, state in named for key in _MOMENT_KEYS}


def gathered(tensors: Mapping[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """Whole tensors by name, none where not `keep`; collective where they are sharded."""
    whole = {}
    for name, tensor in tensors.items():
        tensor = full(tensor)
        if keep:
            whole[name] = tensor
    return whole


def restore(contents: Contents, drafter: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Copy weights, moments and generators back; call after every constructor, since those draw from the generators.

    Raises:
        CheckpointError: names or shapes differ from the drafter's.
    """
    own = drafter.state_dict()
    if differing := sorted(set(own) ^ set(contents.weights)):
        raise CheckpointError(
            f"checkpoint and drafter differ in {len(differing)} tensors, first {differing[0]}. Use the configuration it was made with."
        )
    for name, tensor in own.items():
        saved = contents.weights[name]
        if saved.shape != tensor.shape or saved.dtype != tensor.dtype:
            raise CheckpointError(
                f"{name} is {tuple(saved.shape)} {saved.dtype} in the checkpoint, {tuple(tensor.shape)} {tensor.dtype} here. "
                "Use the configuration it was made with."
            )
        tensor.copy_(like(tensor, saved))
    _restore_moments(contents.moments, drafter, optimizer)
    _restore_generators(contents.state["generators"])


def check_identity(
    saved: Mapping[str, Any], current: Mapping[str, Any], run_dir: Path, forced: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Refuse to continue the run in `run_dir` if its target, tokenizer, data, plan or settings are not those it was begun with.

    Fields (or whole sections) in `forced` may differ; those that do are returned, each with both values, for the log.

    Raises:
        IdentityError: the first field that differs otherwise, with both values.
    """
    flat_saved, flat_current = _flatten(saved), _flatten(current)
    differing = [key for key in sorted(flat_saved | flat_current) if flat_saved.get(key) != flat_current.get(key)]
    accepted = [key for key in differing if any(key == name or key.startswith(f"{name}.") for name in forced)]
    refused = [key for key in differing if key not in accepted]
    if refused:
        key = refused[0]
        more = f" (and {len(refused) - 1} more: {', '.join(refused[1:4])})" if len(refused) > 1 else ""
        raise IdentityError(
            f"The run in {run_dir} was begun with {key} = {flat_saved.get(key)!r}; the configuration now has "
            f"{flat_current.get(key)!r}{more}. Set it back to resume, or start anew: set `run` to another name, or remove {run_dir}."
        )
    return {key: [flat_saved.get(key), flat_current.get(key)] for key in accepted}


def _restore_moments(moments: Mapping[str, torch.Tensor], drafter: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    params = dict(drafter.named_parameters())
    if moments and (differing := sorted({f"{name}.{key}" for name in params for key in _MOMENT_KEYS} ^ set(moments))):
        raise CheckpointError(
            f"optimizer state and drafter differ in {len(differing)} tensors, first {differing[0]}. The checkpoint is of another drafter."
        )
    optimizer.state.clear()
    for name, param in params.items() if moments else ():
        optimizer.state[param] = {key: _moment_like(param, moments[f"{name}.{key}"]) for key in _MOMENT_KEYS}


def _moment_like(param: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """A copy on the parameter's device, sharded as it is; the step counter is a number and stays whole."""
    return like(param, saved) if saved.shape == param.shape and saved.dim() else saved.to(param.device, copy=True)


def _generators() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    version, words, gauss_next = random.getstate()
    return {
        "torch": _encode(torch.get_rng_state().numpy().tobytes()),
        "cuda": [_encode(s.numpy().tobytes()) for s in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        "numpy": [kind, _encode(keys.tobytes()), position, has_gauss, gauss],
        "python": [version, list(words), gauss_next],
    }


def _restore_generators(saved: Mapping[str, Any]) -> None:
    torch.set_rng_state(_decode_tensor(saved["torch"]))
    if len(saved["cuda"]) == torch.cuda.device_count() and saved["cuda"]:
        torch.cuda.set_rng_state_all([_decode_tensor(s) for s in saved["cuda"]])
    kind, keys, position, has_gauss, gauss = saved["numpy"]
    np.random.set_state((kind, np.frombuffer(base64.b64decode(keys), dtype=np.uint32), position, has_gauss, gauss))
    version, words, gauss_next = saved["python"]
    random.setstate((version, tuple(words), gauss_next))


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _decode_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat
