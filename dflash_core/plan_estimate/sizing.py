"""All that an estimate of one role's memory, disk and time follows from, gathered from config.json and build/'s manifests."""

from dataclasses import dataclass

from dflash_core.config import Config
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.plan_estimate.activations import Device, Numerics
from dflash_core.plan_estimate.products import Products, step_products
from dflash_core.plan_estimate.roles import Role, fewest_ranks, plan_roles
from dflash_core.plan_estimate.sizes import (
    BFLOAT16,
    FLOAT32,
    DrafterSizes,
    TargetSizes,
    drafter_sizes,
    planned_spec,
    target_sizes,
    width_of,
)
from dflash_core.plan_estimate.workload import Workload, read_workload


@dataclass(frozen=True)
class Sizing:
    """All that the items of one role follow from."""

    config: Config
    spec: DrafterSpec
    target: TargetSizes
    drafter: DrafterSizes
    workload: Workload
    products: Products
    role: Role
    num_drafter_ranks: int

    @property
    def online(self) -> bool:
        """The target runs in the loop."""
        return self.config.training.feature_source == "online"

    @property
    def target_width(self) -> int:
        """Bytes of a number of the loaded target."""
        return width_of(self.config.target.dtype)

    @property
    def features_width(self) -> int:
        """Bytes of a feature while it waits for the drafter."""
        if self.config.training.feature_noise.std > 0:
            return FLOAT32
        return self.target_width if self.online else BFLOAT16

    @property
    def accumulates(self) -> bool:
        """A rank has more than one micro-batch a step, so gradients and activations are there together."""
        return self.workload.micro_batches * self.role.share > 1

    def numerics(self, device: Device) -> Numerics:
        """Widths of the drafter's activations."""
        compute = width_of(self.config.training.precision)
        return Numerics(device, compute, self.target_width, self.features_width)


def sizings_of(config: Config, num_ranks: int | None = None) -> tuple[Sizing, ...]:
    """One for each role of the run in the working directory. Errors as `planned_spec` and `plan_roles`.

    Args:
        num_ranks: processes of the run; None: distributed.nproc, else as few as the placement works with.
    """
    spec = planned_spec(config)
    target, workload = target_sizes(config, spec), read_workload(config)
    products = step_products(config, spec, target, workload)
    roles = plan_roles(config, num_ranks or config.distributed.nproc or fewest_ranks(config), products)
    drafters = sum(role.count for role in roles if role.runs_drafter)
    return tuple(Sizing(config, spec, target, drafter_sizes(spec), workload, products, role, drafters) for role in roles)
