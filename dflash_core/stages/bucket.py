"""Stage `bucket` as a command."""

from dflash_core.config import Config
from dflash_core.data.plan_manifest import write_plan
from dflash_core.stages import layout


def run(config: Config) -> str:
    """Write build/plan; gives the line that a person sees."""
    plan = write_plan(config, layout.PREPARED, layout.PLAN)
    return (
        f"planned {plan.num_samples} samples in {len(plan.histogram)} buckets, {plan.steps_per_epoch} steps an epoch, "
        f"{plan.micro_batches_per_step:.1f} micro-batches a step, padding {plan.padding_waste:.1%}"
    )
