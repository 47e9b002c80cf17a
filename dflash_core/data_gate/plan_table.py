"""The table of the plan: a row for each sample that an epoch deals out, and for each training row that it leaves out."""

import numpy as np
import pandas

from dflash_core.data.plan import BatchPlan

EPOCHS = 2  # the second one shuffles anew; later ones are dealt in the same way


def plan_table(plan: BatchPlan, training_rows: pandas.DataFrame) -> pandas.DataFrame:
    """One line a sample of the first epochs.

    Args:
        plan: of the training split.
        training_rows: that split's lines of the token table, in the order of the rows.
    """
    columns = training_rows[["row_id", "num_tokens", "num_anchors"]].reset_index(drop=True)
    parts = []
    for epoch in range(EPOCHS):
        dealt = _dealt(plan, epoch)
        part = dealt.join(columns, on="row")
        missing = columns[~columns.index.isin(dealt["row"])]
        parts += [part.assign(epoch=epoch), missing.assign(epoch=epoch)] if len(missing) else [part.assign(epoch=epoch)]
    frame = pandas.concat(parts, ignore_index=True)
    limit = plan.bucket.tokens_per_microbatch
    frame["batch_limit"] = np.maximum(frame["padded_length"], limit)  # a row longer than the limit is a micro-batch of its own
    return frame


def _dealt(plan: BatchPlan, epoch: int) -> pandas.DataFrame:
    rows, steps, lengths, tokens = [], [], [], []
    for index in range(plan.steps_per_epoch):
        step = plan.step_number(epoch * plan.steps_per_epoch + index)
        for micro in step.micro_batches:
            count = len(micro.rows)
            rows += micro.rows
            steps += [index] * count
            lengths += [micro.padded_length] * count
            tokens += [count * micro.padded_length] * count
    return pandas.DataFrame({"row": rows, "step": steps, "padded_length": lengths, "batch_tokens": tokens})
