"""Held-out answers with their features, kept for the cheap acceptance length at every checkpoint.

Dims: B rows, T padded tokens, F features width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from dflash_core.config import EvaluationConfig
from dflash_core.data.dataset import Dataset
from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.acceptance import histogram_PK, summarise
from dflash_core.evaluation.chain_walk import WalkRow, chain_walk
from dflash_core.evaluation.prompts import choose_prompts
from dflash_core.target.ends import TargetEnds
from dflash_core.target.model import Target

# Padded tokens of one target forward while features are taken.
TOKENS_PER_FORWARD = 4096


def walk_rows(
    target: Target, texts: Sequence[tuple[Sequence[int], Sequence[int]]], layer_ids: Sequence[int]
) -> tuple[WalkRow, ...]:
    """Rows to walk along, with the target's features.

    Args:
        target: takes the features in its own dtype.
        texts: (prompt, answer) token ids; neither is empty.
        layer_ids: captured layers, of the drafter.

    Returns:
        One row a text, in order; features on the CPU, rows 0 to T - 2 of each (no anchor sees the last).
    """
    order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]) + len(texts[i][1]))
    rows: dict[int, WalkRow] = {}
    for part in _batches(order, texts):
        tokens = [(*texts[i][0], *texts[i][1]) for i in part]
        padded_BT = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in tokens], batch_first=True)
        with torch.inference_mode():
            features_BTF = target.features(padded_BT.to(target.device), layer_ids).cpu()
        for place, i in enumerate(part):
            features_TF = features_BTF[place, : len(tokens[place]) - 1].clone()  # a view would keep the padded batch alive
            rows[i] = WalkRow(tokens[place], len(texts[i][0]), features_TF)
    return tuple(rows[i] for i in range(len(texts)))


def heldout_walk_rows(config: EvaluationConfig, target: Target, heldout: Dataset, layer_ids: Sequence[int]) -> tuple[WalkRow, ...]:
    """The rows of the in-training measure: recorded answers of held-out prompts, cut at `max_new_tokens` as real evaluation does.

    Recorded answers stand for the target's greedy text. They are that, up to near ties, where stage `regenerate`
    made them; on other conversations the figure is the acceptance of the recorded text, lower than real decoding's.

    Raises:
        DataError: no held-out row can be measured.
    """
    prompts = choose_prompts(heldout, config.num_walk_prompts)
    return walk_rows(target, [(p.prompt_ids, p.answer_ids[: config.max_new_tokens]) for p in prompts], layer_ids)


def make_walk_evaluator(
    config: EvaluationConfig, ends: TargetEnds, rows: Sequence[WalkRow]
) -> Callable[[Drafter, int], Mapping[str, float | None]]:
    """The in-training measure along `rows`, for which the target's ends suffice.

    Returns:
        A function of (drafter, step) to tau, its interval, tau_prompt_mean, full_block_share, rounds and tokens; the
        drafter's mode, gradients and generators are left as they are.
    """

    def evaluate(drafter: Drafter, step: int) -> dict[str, float | None]:
        """Walk all rows; `step` is the caller's, and doesn't change the measure."""
        walked = chain_walk(ends, drafter, rows)
        table_PK = histogram_PK([walk.rounds for walk in walked], drafter.spec.block_size)
        summary = summarise(table_PK, config.bootstrap_samples)
        return {
            "tau": summary.tau,
            "tau_low": summary.tau_low,
            "tau_high": summary.tau_high,
            "tau_prompt_mean": summary.tau_prompt_mean,
            "full_block_share": summary.full_block_share,
            "num_rounds": summary.num_rounds,
            "num_tokens": summary.num_tokens,
        }

    return evaluate


def _batches(order: Sequence[int], texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Iterator[list[int]]:
    """Runs of `order` (shortest first) whose padded tokens stay within the limit; a longer row is alone."""
    part: list[int] = []
    for i in order:
        length = len(texts[i][0]) + len(texts[i][1])
        if part and (len(part) + 1) * length > TOKENS_PER_FORWARD:
            yield part
            part = []
        part.append(i)
    if part:
        yield part
