"""The check of the serve path against the train path: sound drafters pass, and each way of being apart is found."""

from types import SimpleNamespace

import pytest
import torch

from dflash_core.drafter.model import Drafter
from dflash_core.drafter.proposing import DrafterCache
from dflash_core.evaluation import parity
from dflash_core.evaluation.decode import target_decode
from dflash_core.evaluation.parity import TOLERANCE, check_parity
from dflash_core.evaluation.records import Parity
from dflash_core.evaluation.walk_set import walk_rows
from dflash_core.target.continuation import Continuation
from dflash_core.target.model import Target


def check(target: Target, drafter: Drafter, lab: SimpleNamespace, num_prompts: int = 2) -> Parity:
    texts = [(prompt, target_decode(target, prompt, 26, ()).tokens) for prompt in lab.prompts(num_prompts)]
    return check_parity(target, drafter, walk_rows(target, texts, drafter.spec.target_layer_ids), 1e-4)


@pytest.mark.parametrize("sliding", [False, True])
def test_sound_drafters_pass(target: Target, lab: SimpleNamespace, sliding: bool) -> None:
    found = check(target, lab.random_drafter(sliding=sliding), lab)
    assert found.num_blocks > 10 and found.num_different_drafts == 0
    assert found.largest_difference < 0.1 * found.tolerance and found.largest_feature_difference < 1e-2


def _positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block's positions are one too far."""
    angles = DrafterCache.angles
    monkeypatch.setattr(DrafterCache, "angles", lambda self, n: tuple(torch.cat((a[:-1], a[-1:] * 0.5)) for a in angles(self, n)))


def _uncropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong drafts stay in the target's cache."""
    drop = Continuation.drop
    monkeypatch.setattr(Continuation, "drop", lambda self, count: drop(self, max(0, count - 1)))


def _committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter's cache keeps one row too few."""
    commit = DrafterCache.commit
    monkeypatch.setattr(DrafterCache, "commit", lambda self, n: commit(self, max(1, n - 1)))


@pytest.mark.parametrize("fault", [_positions, _uncropped, _committed])
def test_paths_that_are_apart_are_found(llama: Target, lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, fault: object) -> None:
    fault(monkeypatch)
    found = check(llama, lab.random_drafter(), lab, 1)
    assert found.largest_difference > TOLERANCE[torch.float32]


def test_a_drafter_that_computes_no_numbers_is_found(llama: Target, lab: SimpleNamespace) -> None:
    drafter = lab.random_drafter()
    with torch.no_grad():
        drafter.layers[0].mlp.down_proj.weight.fill_(1e38)  # finite as stored, infinite as computed
    found = check(llama, drafter, lab, 1)
    assert found.largest_difference > found.tolerance
    assert Parity.model_validate_json(found.model_dump_json()) == found


def test_rounds_have_every_length_and_end_with_the_text() -> None:
    generator = parity.np.random.default_rng(0)
    for length in (1, 5, 21, 40):
        rounds = parity._rounds_of_every_length(length, 6, generator)
        assert sum(rounds) == length and min(rounds) >= 1
    assert set(rounds) == {1, 2, 3, 4, 5, 6}
