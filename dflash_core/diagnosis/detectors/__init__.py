"""Detectors: pure functions from a View to findings, one for each kind or family of kinds; ALL lists them in order."""

from collections.abc import Callable

from dflash_core.diagnosis.detectors.acceptance import accuracy_drops
from dflash_core.diagnosis.detectors.artefacts import aliasing, running_mean_restart, wrong_scale
from dflash_core.diagnosis.detectors.evaluation import overfit_bursts, train_eval_split
from dflash_core.diagnosis.detectors.gradients import gradient_spikes
from dflash_core.diagnosis.detectors.learning_rate import learning_rate_breaks
from dflash_core.diagnosis.detectors.levels import level_changes
from dflash_core.diagnosis.detectors.nonfinite import nonfinite
from dflash_core.diagnosis.detectors.periodic import periodic
from dflash_core.diagnosis.detectors.spikes import loss_spikes
from dflash_core.diagnosis.detectors.throughput import queue_drift, throughput_changes
from dflash_core.diagnosis.detectors.trends import climbs, plateau
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.view import View

Detector = Callable[[View], list[Finding]]

ALL: tuple[Detector, ...] = (
    nonfinite,
    loss_spikes,
    level_changes,
    climbs,
    plateau,
    periodic,
    gradient_spikes,
    accuracy_drops,
    train_eval_split,
    overfit_bursts,
    queue_drift,
    throughput_changes,
    learning_rate_breaks,
    wrong_scale,
    running_mean_restart,
    aliasing,
)
