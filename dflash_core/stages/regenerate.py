"""Stage `regenerate` as a command."""

from pathlib import Path

from dflash_core.errors import ConfigError
from dflash_core.target.regenerate import regenerate


def run(prompts: Path, target: Path, out: Path, batch_size: int, max_new_tokens: int, dtype: str) -> str:
    """Write the answered prompts; gives the line that a person sees. Raises ConfigError for an unknown dtype."""
    if dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"--dtype is {dtype!r}, expected float32 or bfloat16. Correct it.")
    manifest = regenerate(prompts, target, out, batch_size=batch_size, max_new_tokens=max_new_tokens, dtype=dtype)
    left_out = manifest.get("left_out", {})  # an older manifest has none
    done = f"{manifest['rows'] - len(left_out)} answers are in {out}"
    if not left_out:
        return done
    name, reason = next(iter(left_out.items()))
    return f"{done}; {len(left_out)} left out, as no later stage could read them, the first {name!r}: {reason}"
