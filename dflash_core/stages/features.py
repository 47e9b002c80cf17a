"""Stage `features` as a command."""

import json

from dflash_core.checkpoint.imported import with_imported_layers
from dflash_core.config import Config
from dflash_core.data.directory import replaced_directory
from dflash_core.stages import layout
from dflash_core.target.feature_cache import build_feature_cache


def run(config: Config) -> str:
    """Write build/features; gives the line that a person sees.

    Where the target runs in the loop there is nothing to cache, and a note says so: the chain of stages stays the same.
    """
    if config.training.feature_source == "online":
        note = {"feature_source": "online", "shards": []}
        with replaced_directory(layout.FEATURES) as directory:  # shards of an earlier cache go: without their manifest they are waste
            (directory / "manifest.json").write_text(json.dumps(note) + "\n", encoding="utf-8")
        return "no features cached: training.feature_source is online"
    build_feature_cache(with_imported_layers(config), layout.FEATURES)
    size = sum(path.stat().st_size for path in layout.FEATURES.rglob("*") if path.is_file())
    return f"features are in {layout.FEATURES}, {size / 1e6:,.0f} MB"
