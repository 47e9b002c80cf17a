"""Stage `prepare` as a command."""

from dflash_core.config import Config
from dflash_core.data.prepare import prepare
from dflash_core.stages import layout


def run(config: Config) -> str:
    """Write build/prepared; gives the line that a person sees."""
    manifest = prepare(config, layout.PREPARED)
    splits = ", ".join(f"{s.rows} {name} rows with {s.supervised_tokens:,} supervised tokens" for name, s in manifest.splits.items())
    dropped = ", ".join(f"{count} {reason}" for reason, count in manifest.dropped.items() if count) or "none"
    return f"prepared {splits}; dropped: {dropped}"
