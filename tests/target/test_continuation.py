"""Continuing a text on a cache that grows in place: the numbers of `forward_cached`, for every family, across rejected tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from dflash_core.target import continuation, grouped_attention
from dflash_core.target.continuation import Continuation
from dflash_core.target.model import Target

LAYER_IDS = (0, 1, 3)


@pytest.fixture
def target(family: str, make_model: Callable[..., PreTrainedModel]) -> Target:
    return Target(make_model(family), Path(family))


def test_chunks_with_rejected_tokens_equal_one_forward(target: Target, ids_BT: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuation, "_FIRST_ROOM", 8)  # grows in the middle
    ids, wrong = ids_BT[0].tolist(), ids_BT[1].tolist()
    implementation = target.config._attn_implementation
    logits, features = [], []
    with Continuation(target, LAYER_IDS) as text:
        first_1V, features_1QF = text.prefill(ids[:5])
        features.append(features_1QF)
        for start, stop, num_wrong in ((5, 6, 0), (6, 9, 3), (9, 14, 1), (14, 17, 2)):
            logits_QV, features_1QF = text.step(ids[start:stop] + wrong[:num_wrong])
            text.drop(num_wrong)
            logits.append(logits_QV[: stop - start])
            features.append(features_1QF[:, : stop - start])
    expected_BTV, expected_BTF, _ = target.forward_cached(ids_BT[:1], None, LAYER_IDS)
    assert first_1V.shape[0] == 1
    torch.testing.assert_close(torch.cat([first_1V, *logits]), expected_BTV[0, 4:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat(features, dim=1), expected_BTF, atol=1e-5, rtol=1e-5)
    assert target.config._attn_implementation == implementation
    assert not any(layer._forward_hooks for layer in target._decoder.layers)


def test_grouped_heads_are_not_repeated(llama: Target, ids_BT: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_attention, "sdpa_attention_forward", lambda *_, **__: pytest.fail("heads would be repeated"))
    ids = ids_BT[0].tolist()
    with Continuation(llama, ()) as text, pytest.raises(pytest.fail.Exception):
        text.prefill(ids)  # no mask: transformers' own call repeats nothing
    monkeypatch.undo()
    with Continuation(llama, ()) as text:
        text.prefill(ids[:9])
        monkeypatch.setattr(grouped_attention, "sdpa_attention_forward", lambda *_, **__: pytest.fail("heads would be repeated"))
        text.step(ids[9:])


def test_a_text_beside_a_training_step_leaves_its_cast_weights_alone(
    llama: Target, ids_BT: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `Target.features`: one cache of them serves all threads, and the end of an outermost autocast empties it."""
    cleared = []
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: cleared.append(1))
    with Continuation(llama, ()) as text:
        plain_1V, _ = text.prefill(ids_BT[0].tolist())
    assert not cleared
    with torch.autocast("cpu", dtype=torch.bfloat16), Continuation(llama, ()) as text:
        assert torch.equal(text.prefill(ids_BT[0].tolist())[0], plain_1V), "the target's own dtype, also within a step"
