"""What detectors look at: the cleaned log, its events, and the spread of its loss, computed once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_core.diagnosis.events import Events
from dflash_core.diagnosis.log import Log
from dflash_core.diagnosis.robust import local_sigma, trailing_median

# One false spike in 10^9 lines of normal noise; real batches have heavier tails, which the verdict weighs by how they recover.
ALARM = 6.0
# Lines before a point that say what to expect of it.
MEMORY = 15
# Under this many lines a spread isn't known well enough to speak of sigma.
FEW = 12


@dataclass(frozen=True)
class View:
    """A log with its events; arrays named *_M hold the M rows whose loss is finite.

    `alarm` is the threshold of the loss's detectors in sigma; the benchmark varies it to draw their ROC curve.
    """

    log: Log
    events: Events
    alarm: float = ALARM

    @cached_property
    def rows_M(self) -> np.ndarray:
        """Indices of rows with a finite loss."""
        return np.flatnonzero(np.isfinite(self.log.loss))

    @cached_property
    def loss_M(self) -> np.ndarray:
        """Finite losses."""
        return self.log.loss[self.rows_M]

    @cached_property
    def steps_M(self) -> np.ndarray:
        """Their steps."""
        return self.log.steps[self.rows_M]

    @cached_property
    def sigma_M(self) -> np.ndarray:
        """Spread of the loss around its level, near each row."""
        return local_sigma(self.loss_M)

    @cached_property
    def expected_M(self) -> np.ndarray:
        """Median of the rows before each."""
        return trailing_median(self.loss_M, MEMORY)

    @cached_property
    def improvement(self) -> float:
        """How far the loss came down in all: level of the first rows less the best level; at least one sigma."""
        if len(self.loss_M) < 2:
            return 1e-12
        k = max(1, min(25, len(self.loss_M) // 20))
        levels = [np.median(self.loss_M[i : i + k]) for i in np.linspace(0, len(self.loss_M) - k, 60).astype(int)]
        return float(max(np.median(self.loss_M[:k]) - min(levels), self.sigma_M[-1], 1e-12))
