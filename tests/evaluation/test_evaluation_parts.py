"""What stage evaluate is put together from: prompts of the held-out rows, speeds, the in-training measure, tokens by who gave them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dflash_core.checkpoint.exported import load_drafter
from dflash_core.data.dataset import Dataset, Sample
from dflash_core.errors import DataError
from dflash_core.evaluation.compare import PromptResult
from dflash_core.evaluation.decode import Decoded, TimeSplit
from dflash_core.evaluation.prompts import choose_prompts, split_first_answer
from dflash_core.evaluation.samples import split_text, token_pieces
from dflash_core.evaluation.speed import measure_speed
from dflash_core.evaluation.walk_set import heldout_walk_rows, make_walk_evaluator


def test_speed_up_is_plain_over_speculative_seconds() -> None:
    plain = Decoded((1, 2, 3, 4), (1, 1, 1), (), TimeSplit(total=6.0, prefill=1.0, target=4.0, drafter=0.0))
    fast = Decoded((1, 2, 3, 4), (3,), ((2, 3),), TimeSplit(total=2.0, prefill=0.5, target=0.8, drafter=0.4))
    speed = measure_speed([PromptResult(None, plain, fast)] * 2, samples=40, block_size=4)
    assert (speed.plain_s, speed.speculative_s, speed.speedup) == (12.0, 4.0, 3.0)
    assert (speed.plain_tokens_per_s, speed.speculative_tokens_per_s) == (8 / 12, 2.0)
    assert (speed.prefill_s, speed.target_s, speed.drafter_s, speed.overhead_s) == pytest.approx((1.0, 1.6, 0.8, 0.6))
    # A token of the target alone takes 5 / 3 s, a round 1.5 s: at τ 3, six tokens take 1 + 2 * 1.5 s in place of 1 + 6 * 5 / 3.
    assert speed.break_even_tau == pytest.approx(0.9) and speed.predicted["3"] == pytest.approx(11 / 4)
    assert (speed.speedup_low, speed.speedup_high) == (3.0, 3.0) and max(map(float, speed.predicted)) == 4


def test_prompts_are_dealt_over_categories_in_a_stable_order(world: SimpleNamespace) -> None:
    heldout = Dataset.open(world.root / "prepared", "heldout")
    chosen = choose_prompts(heldout, 5)
    assert [prompt.category for prompt in chosen] == ["code", "list", "story", "code", "list"]
    assert chosen == choose_prompts(heldout, 100)[:5]
    by_file = [heldout.sample(row).sample_id for row in range(len(heldout)) if heldout.sample(row).category == "code"]
    by_choice = [prompt.sample_id for prompt in choose_prompts(heldout, 1000) if prompt.category == "code"]
    assert sorted(by_choice) == sorted(by_file) and by_choice != by_file  # files are ordered by what wrote them
    with pytest.raises(DataError, match="0 rows"):
        choose_prompts([], 5)


def test_first_answer_is_the_first_supervised_run() -> None:
    def sample(mask: list[int]) -> Sample:
        return Sample("x", "c", np.arange(len(mask), dtype=np.int32), np.array(mask, dtype=bool))

    found = split_first_answer(sample([0, 0, 1, 1, 0, 1]))
    assert found is not None and found.prompt_ids == (0, 1) and found.answer_ids == (2, 3)
    assert split_first_answer(sample([0, 0])) is None and split_first_answer(sample([1, 1])) is None


def test_in_training_measure_leaves_the_drafter_as_it_is(world: SimpleNamespace) -> None:
    drafter = load_drafter(world.root / "drafter").train()
    settings, layer_ids = world.config.evaluation, drafter.spec.target_layer_ids
    rows = heldout_walk_rows(settings, world.target, Dataset.open(world.root / "prepared", "heldout"), layer_ids)
    measure = make_walk_evaluator(settings, world.target, rows)
    state = torch.get_rng_state()
    found = measure(drafter, 1)
    assert found == measure(drafter, 2) and 1 <= found["tau"] <= 4 and found["tau_low"] <= found["tau"] <= found["tau_high"]
    assert found["num_tokens"] <= 4 * 11 and torch.equal(state, torch.get_rng_state())
    assert drafter.training and all(parameter.grad is None and parameter.requires_grad for parameter in drafter.parameters())


def test_pieces_name_who_gave_each_token(world: SimpleNamespace) -> None:
    tokenizer = world.target.tokenizer
    tokens = tuple(tokenizer.encode("The answer is a small boat, and why not: é."))
    decoded = SimpleNamespace(
        tokens=tokens[:8], rounds=(3, 4), drafts=((tokens[1], tokens[2], 0), tuple(tokens[4:7]))
    )  # a block whose last draft misses, then one accepted whole
    pieces = token_pieces(tokenizer, decoded)
    assert [piece.kind for piece in pieces] == ["first", "draft", "draft", "bonus", "draft", "draft", "draft", "bonus"]
    assert [piece.round for piece in pieces] == [0, 1, 1, 1, 2, 2, 2, 2]
    assert "".join(split_text(tokenizer, tokens)) == tokenizer.decode(list(tokens)) and "é" in split_text(tokenizer, tokens)
