"""A target whose layers are split over the ranks of a process group, by transformers' own tensor-parallel plans.

Dims: B batch rows, T tokens, F features width, V vocab, D hidden.
For a target that one GPU can't hold, or not beside enough activations: each rank reads and holds 1/n of the layers'
matrices. Embedding, head and norms are whole on every rank (4.2 of Llama-3-70B's 141 GB), so that whatever starts, checks
or measures a drafter finds them as in a plain target.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig

from dflash_core.config import TargetConfig
from dflash_core.errors import ConfigError
from dflash_core.target.model import Target, load_model
from dflash_core.target.stored import StoredModel

# Projections whose output is cut between heads under the plan's style "colwise"; "colwise_gather_output" (Phi 3) puts them together.
HEAD_PROJECTIONS = ("q_proj", "k_proj", "qkv_proj", "query_key_value")


class ParallelTarget(Target):
    """A target that the ranks of a group hold together.

    `features`, `forward_cached` and `model` are collective: all ranks of the group call them in the same order with equal
    tokens, and each gets the whole, equal result. Embedding and head are whole, and `decoder_layers` reads files, so
    that those need no other rank.
    """

    def __init__(self, model: PreTrainedModel, stored: StoredModel, trust_remote_code: bool = False) -> None:
        super().__init__(model, stored.path, trust_remote_code)
        self._stored = stored

    def decoder_layers(self, layer_ids: Sequence[int]) -> Iterator[nn.Module]:
        layers = self._stored.skeleton.get_decoder().layers
        return (self._stored.filled(layers[i], partly=True) for i in layer_ids)


def load_parallel_target(config: TargetConfig, group: ProcessGroup) -> ParallelTarget:
    """Load `config`'s target over the ranks of `group`, each of which calls this; no other rank of the world is involved.

    Each rank uses its current CUDA device, if there is one, and reads only its own part of the files.

    Args:
        config: The target.
        group: The ranks, any part of the world; of NCCL on GPUs. No other thread may use it, since sums over the ranks are
            matched by their order alone.

    Raises:
        ConfigError: see `Target.load`; no tensor-parallel plan for this family, or heads that don't divide by the ranks.
    """
    stored = StoredModel(config)
    size = dist.get_world_size(group)
    check_divisible(stored.skeleton, size)
    plan = {name: "replicate" for name in _end_names(stored.skeleton)}
    model = load_model(
        _over_group(type(stored.skeleton), group, stored.device),
        config,
        config=stored.skeleton.config,
        distributed_config=DistributedConfig(tp_size=size, tp_plan=plan),
    )
    return ParallelTarget(model, stored, config.trust_remote_code)


def check_divisible(skeleton: PreTrainedModel, size: int) -> None:
    """Refuse a number of ranks that would cut a head, before any weight is read: transformers would fail in the first forward.

    Args:
        skeleton: The model, on whatever device.
        size: Ranks that hold it together.

    Raises:
        ConfigError: as said.
    """
    plan = skeleton.tp_plan
    if not plan:
        raise ConfigError(
            f"{type(skeleton).__name__} has no tensor-parallel plan in this transformers, and tensor_parallel is {size}. "
            "Set distributed.tensor_parallel to 1, or use another target."
        )
    config = skeleton.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    cut = any(name.rsplit(".", 1)[-1] in HEAD_PROJECTIONS and style == "colwise" for name, style in plan.items())
    if cut and (heads % size or kv_heads % size):
        raise ConfigError(
            f"{type(skeleton).__name__} has {heads} heads and {kv_heads} key/value heads, and tensor_parallel is {size}; "
            "expected a divisor of both. Lower distributed.tensor_parallel."
        )


def _end_names(skeleton: PreTrainedModel) -> set[str]:
    """Names of embedding and head, which transformers' plans would cut along the vocabulary."""
    ends = (skeleton.get_input_embeddings(), skeleton.get_output_embeddings())
    return {name for name, module in skeleton.named_modules() if any(module is end for end in ends)}


class _GroupMesh:
    """Stands for transformers' mesh of the whole world, whose other dimensions (pipeline, FSDP) have size 1 here."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def get_mesh(self, _dims: str | tuple[str, ...]) -> DeviceMesh:
        return self._mesh


def _over_group(model_class: type[PreTrainedModel], group: ProcessGroup, device: torch.device) -> type[PreTrainedModel]:
    """The model class with transformers' choice of mesh replaced.

    transformers 5.24 makes its mesh from all ranks of the world, or refuses; here the others train the drafter. A
    subclass overrides that one step and changes nothing for other loads. It keeps name and module, by which
    transformers finds the conversions of stored weights of some classes (GPT-NeoX).
    """
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    mesh = _GroupMesh(DeviceMesh.from_group(group, device.type, mesh_dim_names=("tp",)))

    def prepare_distribute_model(
        _cls: type, distributed_config: DistributedConfig, device_map: Any = None
    ) -> tuple[DistributedConfig, torch.device, _GroupMesh]:
        return distributed_config, device, mesh

    overridden = {"prepare_distribute_model": classmethod(prepare_distribute_model), "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), overridden)
