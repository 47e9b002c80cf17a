"""The campaign of oracles, with few prompts; and figures derived from rounds and drafts, worked out by hand."""

import oracle_decode
import pytest

from dflash_core.evaluation.acceptance import by_category, histogram_PK, summarise
from dflash_core.evaluation.breakdown import by_position, by_prompt_length
from dflash_core.evaluation.compare import PromptResult
from dflash_core.evaluation.decode import Decoded, TimeSplit
from dflash_core.evaluation.definitions import definitions, slot_marginals
from dflash_core.evaluation.records import PromptRecord
from dflash_core.target.model import Target

NO_TIME = TimeSplit(1.0, 0.1, 0.5, 0.2)


def test_oracles_get_the_acceptance_that_they_were_made_for(target: Target) -> None:
    prompts = oracle_decode.random_prompts(2, target.vocab_size, 0)[1:]
    tallies = oracle_decode.campaign("tiny", target, prompts, 13, seed=0)
    assert all(tally.holds for tally in tallies), tallies
    exact = {tally.drafter: tally.tau for tally in tallies if tally.drafter.startswith("oracle of") and "drafts" in tally.drafter}
    assert exact == {f"oracle of {depth} drafts": depth + 1 for depth in range(4)}


def test_a_wrong_text_or_round_fails_the_campaign() -> None:
    tally = oracle_decode.Tally("x", "y", 2.0)
    tally.add([2, 2, 2], [2, 2, 2], None)
    assert tally.holds
    tally.add([2, 1, 3], [2, 2, 2], None)
    assert not tally.holds


# Blocks of 4: the first round's drafts are right at slots 1 and 3, the second's at all but are cut by the end.
DECODED = Decoded((9, 1, 2, 3, 4, 5), (2, 3), ((1, 7, 3), (3, 4, 5)), NO_TIME)


def test_other_definitions_of_a_worked_example() -> None:
    assert slot_marginals([DECODED], 4) == (1.0, 0.5, 1.0)
    result = PromptResult(PromptRecordLike, DECODED, DECODED)
    table_PK = histogram_PK([DECODED.rounds, (1,)], 4)
    named = {d.name: d.value for d in definitions(summarise(table_PK), by_category(table_PK, ["a", "b"]), [result, result], True)}
    assert named["τ: tokens over target forwards, bonus included"] == 2.0
    assert named["mean of prompts' own τ"] == named["mean of categories' own τ"] == (2.5 + 1) / 2
    assert named["without the bonus token"] == 1.0 and named["prefill and its token counted"] == 8 / 5
    assert named["1 + product of marginals"] == 1 + 1 + 0.5 + 0.5
    assert named["share of drafts accepted"] == pytest.approx(3 / 9)


class PromptRecordLike:
    """A prompt whose fields nobody asks for."""


def test_drafted_accepted_and_wasted_add_up() -> None:
    found = summarise(histogram_PK([(4, 2, 1)], 4))
    assert (found.num_drafted, found.num_wasted, found.num_tokens - found.num_rounds) == (9, 5, 4)


def test_parts_by_place_and_length_hold_all_rounds() -> None:
    def record(length: int, rounds: tuple[int, ...]) -> PromptRecord:
        return PromptRecord(
            sample_id="x", set_name="s", category="c", turn=1, num_prompt_tokens=length, num_tokens=1 + sum(rounds), rounds=rounds, plain_s=1.0,
            speculative_s=1.0,
        )  # fmt: skip

    prompts = [record(31, (4,) * 20), record(32, (1,) * 40), record(300, (2,))]
    place = by_position(prompts, 4, 50)
    assert {name: part.num_rounds for name, part in place.items()} == {"0 to 31": 8 + 31 + 1, "32 to 63": 8 + 9, "64 to 127": 4}
    assert {name: part.num_rounds for name, part in by_prompt_length(prompts, 4, 50).items()} == {"0 to 31": 20, "32 to 63": 40, "256 to 511": 1}
