"""Learning rate and feature-noise level as pure functions of the step, so that a resume has no scheduler to restore.

A step is the 1-based number of the optimizer update being made, the same number as in the log.
"""

import math

from dflash_core.config import FeatureNoiseConfig, TrainingConfig


def learning_rate(step: int, total_steps: int, config: TrainingConfig) -> float:
    """Learning rate of update `step`, counted from 1.

    Linear warm-up reaches the peak at step `warmup_steps(...)`. After it: `cosine` falls along half a
    cosine, `wsd` stays and then falls linearly over the last `decay_ratio` of the run, both to
    `min_lr_ratio` of the peak at the last step; `constant` stays. Steps past the end prove the last checkpoint and run at
    the peak: at the last rate, which is often 0, the weights would stay as they are, and wrong moments would not show.
    """
    assert step >= 1, step
    if step > total_steps:
        return config.learning_rate
    warmup = warmup_steps(total_steps, config.warmup_ratio)
    if step <= warmup:
        return config.learning_rate * step / warmup
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "cosine":
        progress = (step - warmup) / (total_steps - warmup)
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        decay = _steps_of(config.decay_ratio, total_steps)
        share = min(1.0, (total_steps - step) / decay) if decay else 1.0
    return config.learning_rate * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * share)


def warmup_steps(total_steps: int, warmup_ratio: float) -> int:
    """Steps of the linear warm-up; the last of them runs at the peak."""
    return _steps_of(warmup_ratio, total_steps)


def _steps_of(ratio: float, total_steps: int) -> int:
    """The share rounded up; 0.07 * 100 is 7.000000000000001 in binary, and means 7."""
    return math.ceil(ratio * total_steps - 1e-9)


def noise_std(step: int, config: FeatureNoiseConfig) -> float:
    """Level of the feature noise at update `step`: linear from 0, at its plateau from step `warmup_steps` on.

    It counts optimizer steps and nothing else: counted in micro-batches or in epochs, the plateau would come
    at another step than the one configured.
    """
    if config.warmup_steps == 0:
        return config.std
    return config.std * min(1.0, step / config.warmup_steps)
