"""Finds a pattern of the loss that comes again at a fixed distance of lines."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import centred_median, mad_sigma
from dflash_core.diagnosis.view import View

LEAST_ROWS = 64
# Under white noise an autocorrelation has standard error 1 / sqrt(n); of n/4 lags one passes 6 by chance in 10^9.
ALARM = 6.0
LEAST_CORRELATION = 0.25


def periodic(view: View) -> list[Finding]:
    """The lag at which the residual of the loss repeats best, if its multiple repeats too and the lag between doesn't."""
    loss = view.loss_M
    if len(loss) < LEAST_ROWS:
        return []
    tail = slice(len(loss) // 10, None)  # the fast first fall is no noise
    residual = (loss - centred_median(loss, 101 if len(loss) > 400 else 31))[tail]
    sigma = mad_sigma(residual)
    residual = np.clip(residual, -4 * sigma, 4 * sigma) - np.mean(np.clip(residual, -4 * sigma, 4 * sigma))
    power = float(residual @ residual)
    if power <= 0:
        return []
    correlation = _autocorrelation(residual) / power
    limit = max(ALARM / np.sqrt(len(residual)), LEAST_CORRELATION)
    lags = np.arange(3, len(residual) // 4)
    good = [
        int(lag)
        for lag in lags[correlation[lags] > limit]
        if correlation[lag] >= correlation[lag - 1 : lag + 2].max() and correlation[2 * lag] > 0.5 * correlation[lag] and _dips(correlation, int(lag))
    ]
    if not good:
        return []
    lag = min(good, key=lambda k: (-round(float(correlation[k]), 1), k))
    spacing = float(np.median(np.diff(view.steps_M)))
    first = float(view.steps_M[tail][0])
    text = f"the loss repeats a pattern every {lag * spacing:g} steps (autocorrelation {correlation[lag]:.2f}, chance gives {1 / np.sqrt(len(residual)):.2f})"
    detail = {"period": lag * spacing, "rows": lag, "autocorrelation": float(correlation[lag])}
    size = float(correlation[lag] * np.sqrt(len(residual)))
    return [Finding(kind="periodic", step=first, index=int(view.rows_M[tail][0]), severity="warning", size=size, text=text, detail=detail)]


def _dips(correlation: np.ndarray, lag: int) -> bool:
    """Slowly wandering noise is correlated at every short lag; a period has a valley before it."""
    return bool(correlation[1:lag].min() < 0.3 * correlation[lag])


def _autocorrelation(values: np.ndarray) -> np.ndarray:
    size = 1 << (2 * len(values) - 1).bit_length()
    spectrum = np.fft.rfft(values, size)
    return np.fft.irfft(np.abs(spectrum) ** 2, size)[: len(values)]
