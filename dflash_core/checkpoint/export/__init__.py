"""Export of a drafter for other programs: one file a layout, and what they share in `publish`."""

from dflash_core.checkpoint.export.card import PROVEN, UNPROVEN
from dflash_core.checkpoint.export.native import export_transformers
from dflash_core.checkpoint.export.speculators import export_speculators
from dflash_core.checkpoint.export.zlab import export_zlab

__all__ = ["PROVEN", "UNPROVEN", "export_speculators", "export_transformers", "export_zlab"]
