"""Robust statistics of a series: levels by medians, spreads by median deviations.

Every threshold of the detectors is a multiple of a spread measured here on the run itself. A median deviation times
1.4826 is a normal sigma and stays within a factor 2 of it with a quarter of the points wild (Rousseeuw & Croux 1993,
"Alternatives to the median absolute deviation").
"""

import numpy as np

TO_SIGMA = 1.4826
# Standard error of the median of n normal values, in units of sigma / sqrt(n): sqrt(pi / 2).
MEDIAN_ERROR = 1.2533
CHUNK = 1 << 16


def mad_sigma(values: np.ndarray) -> float:
    """Normal-equivalent spread around the median; 0.0 for fewer than two values."""
    return float(TO_SIGMA * np.median(np.abs(values - np.median(values)))) if len(values) > 1 else 0.0


def noise_sigma(values: np.ndarray) -> float:
    """Spread of line-to-line noise, from first differences, so that a trend doesn't count.

    Below 20 values one wild value spoils two differences of few, so that the lower quartile is used: 0.3186 is the
    quartile of a standard normal's absolute value.
    """
    if len(values) < 3:
        return 0.0
    steps = np.diff(values)
    steps = np.abs(steps - np.median(steps)) if len(steps) > 4 else np.abs(steps)
    spread = np.quantile(steps, 0.25) / 0.3186 if len(values) < 20 else TO_SIGMA * np.median(steps)
    return float(max(spread / np.sqrt(2), quantum(values)))


def quantum(values: np.ndarray) -> float:
    """Spread that rounding alone gives: a logged value is known to one part of its grid, uniform over it."""
    steps = np.abs(np.diff(values[:20000]))
    steps = steps[steps > 0]
    grid = float(np.quantile(steps, 0.02)) if len(steps) else 0.0
    level = float(np.median(np.abs(values))) if len(values) else 0.0
    return max(grid / np.sqrt(12), 1e-7 * level, 1e-12)


def local_sigma(values: np.ndarray, block: int = 256) -> np.ndarray:
    """noise_sigma by blocks, as a curve over the series [N].

    Never under half the run's own: a quiet block isn't proof of a quiet process. Blocks are smoothed by a median of
    three, so that one fault doesn't hide itself by raising its own block's spread.
    """
    whole = noise_sigma(values)
    count = len(values) // block
    if count < 2:
        return np.full(len(values), whole)
    # A block's 255 differences have a middle one, which partitioning finds in half the time of np.median.
    steps = np.diff(values[: count * block].reshape(count, block), axis=1)
    steps -= _middles(steps)[:, None]
    spreads = TO_SIGMA / np.sqrt(2) * _middles(np.abs(steps))
    padded = np.pad(spreads, 1, mode="edge")
    smoothed = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    curve = np.interp(np.arange(len(values)), (np.arange(count) + 0.5) * block, smoothed)
    return np.maximum(curve, whole / 2)


def trailing_median(values: np.ndarray, width: int) -> np.ndarray:
    """Median of the up to `width` values before each one; the first has itself [N]. `width` is odd."""
    out = np.empty(len(values))
    head = min(width, len(values))
    for i in range(head):
        out[i] = np.median(values[: i or 1])
    if len(values) > width:
        out[width:] = _windows(values[:-1], width)
    return out


def centred_median(values: np.ndarray, width: int) -> np.ndarray:
    """Median of `width` values around each one; the ends see themselves mirrored in their own value [N].

    A wide window moves little from line to line: it is taken at every sixteenth of its width, with lines between.
    """
    width = min(width | 1, max(1, (len(values) - 1) | 1))
    half = width // 2
    padded = np.concatenate([2 * values[0] - values[half:0:-1], values, 2 * values[-1] - values[-2 : -half - 2 : -1]])
    every = max(1, width // 16)
    medians = _windows(padded, width, every)
    return medians if every == 1 else np.interp(np.arange(len(values)), np.arange(len(medians)) * every, medians)


def _windows(values: np.ndarray, width: int, every: int = 1) -> np.ndarray:
    """Medians of all windows of an odd width, or of every few."""
    assert width % 2, width
    view = np.lib.stride_tricks.sliding_window_view(values, width)[::every]
    # In chunks: a window of 31 over a million lines would be 250 MB at once.
    return np.concatenate([_middles(view[i : i + CHUNK]) for i in range(0, len(view), CHUNK)])


def _middles(rows: np.ndarray) -> np.ndarray:
    """Medians of rows of an odd number of values."""
    middle = rows.shape[1] // 2
    return np.partition(rows, middle, axis=1)[:, middle]


def block_medians(values: np.ndarray, block: int) -> np.ndarray:
    """Medians of successive whole blocks."""
    whole = len(values) // block
    return np.median(values[: whole * block].reshape(whole, block), axis=1)


def step_statistic(values: np.ndarray, width: int, every: int = 1) -> np.ndarray:
    """Median of the `width` (odd) values from each one on, minus that of the `width` before it; 0 near the ends [N].

    With `every` (a part of `width`) it is taken at every so many values, and repeated between.
    """
    out = np.zeros(len(values))
    if len(values) < 2 * width:
        return out
    medians = _windows(values, width, every)
    steps = medians[width // every :] - medians[: -(width // every)]
    inner = len(values) - 2 * width + 1
    out[width : width + inner] = np.repeat(steps, every)[:inner]
    return out
