"""`train --plan`: what a run will take in memory, on disk and in time, without loading a weight or starting anything."""

from dflash_core.plan_estimate.table import print_plan

__all__ = ["print_plan"]
