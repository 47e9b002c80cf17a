"""Judges the inputs of a training: makes each table, has its suite validated, and fails closed.

What can't be measured is a no: an input that is damaged or of something else, an expectation that raises, Great
Expectations that can't be imported.
"""

from collections.abc import Callable

from dflash_core.data_gate.conversation_table import conversation_table
from dflash_core.data_gate.inputs import Inputs
from dflash_core.data_gate.plan_table import EPOCHS, plan_table
from dflash_core.data_gate.round_trip import round_trip_faults
from dflash_core.data_gate.token_table import token_table
from dflash_core.data_gate.verdict import Outcome, Verdict
from dflash_core.errors import DataError, DflashError, IdentityError

Looked = tuple[list[Outcome], dict[str, str]]  # outcomes, and facts by label


def judge(inputs: Inputs) -> Verdict:
    """The verdict on all three tables; one that can't be made doesn't keep the others from being judged."""
    outcomes: list[Outcome] = []
    facts: dict[str, str] = {}
    for table, look in (("conversations", _conversations), ("tokens", _tokens), ("plan", _plan)):
        found, told = _guarded(table, look, inputs)
        outcomes += found
        facts |= told
    return Verdict(outcomes=tuple(outcomes), dataset=_dataset(inputs), facts=facts)


def _guarded(table: str, look: Callable[[Inputs], Looked], inputs: Inputs) -> Looked:
    try:
        return look(inputs)
    except Exception as error:  # noqa: BLE001 - whatever it is, the data weren't found good
        fault = str(error) if isinstance(error, DflashError) else f"{type(error).__name__}: {error}"
        says = f"The table of {table} can be made and validated."
        return [Outcome(table=table, name=f"{table}-measured", says=says, passed=False, observed="not measured", fault=fault)], {}


def _conversations(inputs: Inputs) -> Looked:
    # Great Expectations takes 2.6 s to import, and that it can be is no matter of course.
    from dflash_core.data_gate.suites import conversation_suite, split_suite
    from dflash_core.data_gate.validate import validate

    gate = inputs.config.data_gate
    suite = conversation_suite(gate, inputs.reference)
    try:
        splits = inputs.splits
        suite += split_suite(gate)
    except (DataError, IdentityError):  # told by the table of tokens; rows can be judged by themselves all the same
        splits = {}
    frame = conversation_table(inputs.rows, splits, gate.similarity, inputs.reference)
    return validate("conversations", frame, suite), {"conversations": f"{len(frame):,}"}


def _tokens(inputs: Inputs) -> Looked:
    from dflash_core.data.template import load_tokenizer
    from dflash_core.data_gate.suites import token_suite
    from dflash_core.data_gate.validate import validate

    config = inputs.config
    tokenizer = load_tokenizer(config.target.path, config.target.trust_remote_code)
    faults = round_trip_faults(inputs.sampled, inputs.conversations, tokenizer, config.data.max_length)
    known = {row.row_id for row in inputs.rows}
    frame = token_table(inputs.datasets, config.drafter.mask_token_id, known, faults)
    tokens, supervised = int(frame["num_tokens"].sum()), int(frame["num_supervised"].sum())
    facts = {f"{split} rows": f"{(frame['split'] == split).sum():,}" for split in ("train", "heldout")}
    facts |= {"tokens": f"{tokens:,}", "supervised": f"{supervised / max(1, tokens):.1%}", "rows decoded": f"{len(inputs.sampled):,}"}
    return validate("tokens", frame, token_suite(config, inputs.num_token_ids)), facts


def _plan(inputs: Inputs) -> Looked:
    from dflash_core.data_gate.suites import plan_suite
    from dflash_core.data_gate.validate import validate

    plan, training = inputs.plan, inputs.datasets[0]
    frame = plan_table(plan.plan, token_table([training], None, (), {}))
    suite = plan_suite(len(training), EPOCHS, plan.buckets)
    return validate("plan", frame, suite), {"steps of an epoch": f"{plan.plan.steps_per_epoch:,}", "padding": f"{plan.manifest.padding_waste:.1%}"}


def _dataset(inputs: Inputs) -> str | None:
    try:
        return inputs.datasets[0].manifest.digest
    except Exception:  # noqa: BLE001 - told above, whatever it is
        return None
