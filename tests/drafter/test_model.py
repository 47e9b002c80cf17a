"""The network against its definition, and the acceptance tests of the spec's section 7 that concern it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_core.config import ObjectiveConfig
from dflash_core.drafter import proposing
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.objectives import make_objective
from dflash_core.drafter.spec import DrafterSpec

from .conftest import SPEC, ToyBatch, gradients, make_batch, make_drafter


def plain_block(drafter: Drafter, features_TF: Tensor, embeds_KD: Tensor, anchor: int) -> Tensor:
    """One block by the equations of spec 1.1, loop by loop: no batching, no shared code. Returns hidden_KD."""
    spec, weights = drafter.spec, drafter.state_dict()

    def norm(x: Tensor, name: str) -> Tensor:
        return weights[name] * x / (x.pow(2).mean(-1, keepdim=True) + spec.rms_norm_eps).sqrt()

    def rope(x_Nd: Tensor, positions: list[int]) -> Tensor:
        half = spec.head_dim // 2
        angles = torch.tensor(positions)[:, None] / spec.rope_theta ** (torch.arange(half) / half)
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        return x_Nd * cos + torch.cat([-x_Nd[:, half:], x_Nd[:, :half]], -1) * sin

    K, d = len(embeds_KD), spec.head_dim
    context = norm(features_TF[:anchor] @ weights["fc.weight"].T, "hidden_norm.weight")
    slots, positions = list(range(anchor, anchor + K)), list(range(anchor + K))
    x = embeds_KD
    for i in range(spec.num_layers):
        at = f"layers.{i}."
        h = norm(x, at + "input_layernorm.weight")
        rows = torch.cat([context, h])
        heads = []
        for head in range(spec.num_heads):
            kv = head // (spec.num_heads // spec.num_kv_heads)
            wq = weights[at + "self_attn.q_proj.weight"][head * d : head * d + d]
            wk, wv = (weights[at + f"self_attn.{name}_proj.weight"][kv * d : kv * d + d] for name in "kv")
            q = rope(norm(h @ wq.T, at + "self_attn.q_norm.weight"), slots)
            k = rope(norm(rows @ wk.T, at + "self_attn.k_norm.weight"), positions)
            v = rows @ wv.T
            scores = q @ k.T / d**0.5
            if spec.window_of(i) is not None:
                for row, slot in enumerate(slots):
                    for position in positions:
                        if position > slot or position < slot - (spec.window_of(i) - 1):
                            scores[row, position] = float("-inf")
            heads.append(scores.softmax(-1) @ v)
        x = x + torch.cat(heads, -1) @ weights[at + "self_attn.o_proj.weight"].T
        h = norm(x, at + "post_attention_layernorm.weight")
        gate, up = (h @ weights[at + f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ weights[at + "mlp.down_proj.weight"].T
    return norm(x, "norm.weight")


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_equations_of_the_spec(spec: DrafterSpec, attention: str) -> None:
    drafter, batch = make_drafter(spec), make_batch(spec)
    embeds_BAKD = batch.embeds_BAKD(spec)
    with torch.no_grad():
        hidden_BAKD = drafter(batch.features_BTF, embeds_BAKD, batch.anchors_BA, attention)
        labels_only = drafter(batch.features_BTF, embeds_BAKD, batch.anchors_BA, attention, label_slots_only=True)
        torch.testing.assert_close(labels_only, hidden_BAKD[:, :, 1:], atol=1e-5, rtol=1e-5)
        for row, anchors in enumerate(batch.anchors_BA.tolist()):
            for index, anchor in enumerate(anchors):
                expected = plain_block(drafter, batch.features_BTF[row], embeds_BAKD[row, index], anchor)
                torch.testing.assert_close(hidden_BAKD[row, index], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_spec7_01_leak(spec: DrafterSpec, attention: str) -> None:
    """Nothing at or after the anchor, and no other block or row, reaches a block: its output doesn't change by a bit."""
    drafter, batch = make_drafter(spec), make_batch(spec, num_rows=2, length=40, num_anchors=8)
    embeds_BAKD, index = batch.embeds_BAKD(spec), 4
    anchor = int(batch.anchors_BA[0, index])

    def block(features_BTF: Tensor, embeds: Tensor) -> Tensor:
        with torch.no_grad():
            return drafter(features_BTF, embeds, batch.anchors_BA, attention)[0, index]

    before = block(batch.features_BTF, embeds_BAKD)
    features, embeds = batch.features_BTF.clone(), embeds_BAKD.clone()
    features[0, anchor:] += 100 * torch.randn_like(features[0, anchor:])
    features[1] = torch.randn_like(features[1])
    others = torch.arange(8) != index
    embeds[0, others] = 100 * torch.randn_like(embeds[0, others])
    embeds[1] = 0.0
    assert torch.equal(block(features, embeds), before)
    features[0, anchor - 1] += 1.0
    assert not torch.equal(block(features, embeds), before)


def test_spec7_02_training_equals_inference(spec: DrafterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a training pass equal those proposed step by step from a cache fed in uneven chunks, which grows on the way."""
    monkeypatch.setattr(proposing, "_FIRST_ROOM", 9)
    drafter, batch = make_drafter(spec), make_batch(spec, num_rows=1)
    anchors = [3, 4, 9, 10, 22]
    batch = replace(batch, anchors_BA=torch.tensor([anchors]), keep_BA=torch.ones(1, len(anchors), dtype=torch.bool))
    embeds_BAKD = batch.embeds_BAKD(spec)
    with torch.no_grad():
        trained = drafter(batch.features_BTF, embeds_BAKD, batch.anchors_BA)[0]
        cache = drafter.new_cache()
        for index, anchor in enumerate(anchors):
            proposed = drafter.propose(batch.features_BTF[:, cache.length : anchor], embeds_BAKD[:, index], cache)
            assert cache.length == anchor
            torch.testing.assert_close(proposed[0], trained[index], atol=1e-4, rtol=1e-4)


def test_shorter_block_at_the_end_of_the_budget() -> None:
    """A block of fewer slots is the network on fewer slots, as z-lab's decoding does near its limit."""
    drafter, batch = make_drafter(SPEC), make_batch(SPEC, num_rows=1)
    embeds_KD = batch.embeds_BAKD(SPEC)[0, 3, :2]
    with torch.no_grad():
        proposed = drafter.propose(batch.features_BTF[:, :7], embeds_KD[None], drafter.new_cache())[0]
    torch.testing.assert_close(proposed, plain_block(drafter, batch.features_BTF[0], embeds_KD, 7), atol=2e-5, rtol=1e-4)


def test_spec7_03_label_map() -> None:
    """On text that counts up, slot k learns token a + k; the anchor's own slot gets no gradient."""
    spec = replace(SPEC, vocab_size=13, mask_token_id=12)
    drafter, objective = make_drafter(spec), make_objective(ObjectiveConfig(), spec.block_size)
    starts = torch.arange(12)[:, None]
    rows = replace(
        make_batch(spec, num_rows=12, length=16, num_anchors=8),
        ids_BT=(starts + torch.arange(16)) % 12,
        loss_mask_BT=torch.ones(12, 16, dtype=torch.bool),
    )
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=5e-3)
    labels_BAS, mask_BAS = rows.labels(spec)
    for _ in range(80):
        optimizer.zero_grad()
        (objective.loss_sum(rows.ce_BAS(drafter), mask_BAS) / objective.denominator(mask_BAS)).backward()
        optimizer.step()
    hidden_BAKD = drafter(rows.features_BTF, rows.embeds_BAKD(spec), rows.anchors_BA)
    hidden_BAKD.retain_grad()
    guesses_BAS = (hidden_BAKD[:, :, 1:] @ rows.embed_VD.T).argmax(-1)
    counted_BAS = (rows.ids_BT.gather(1, rows.anchors_BA)[..., None] + torch.arange(1, spec.block_size)) % 12
    assert (guesses_BAS == counted_BAS)[mask_BAS].float().mean() > 0.95
    assert torch.equal(counted_BAS[mask_BAS], labels_BAS[mask_BAS])
    logits = hidden_BAKD[:, :, 1:][mask_BAS] @ rows.embed_VD.T
    F.cross_entropy(logits, labels_BAS[mask_BAS]).backward()
    assert hidden_BAKD.grad[:, :, 0].abs().max() == 0 and hidden_BAKD.grad[:, :, 1].abs().max() > 0


def pad(batch: ToyBatch, length: int, num_anchors: int) -> ToyBatch:
    """The same rows with padded tokens (garbage features) and padded anchors (the last one, or 0 for a row without)."""
    B, T = batch.ids_BT.shape
    more, extra = length - T, num_anchors - batch.anchors_BA.shape[1]
    garbage = 1e3 * torch.randn(B, more, batch.features_BTF.shape[2])
    return replace(
        batch,
        ids_BT=F.pad(batch.ids_BT, (0, more)),
        loss_mask_BT=F.pad(batch.loss_mask_BT, (0, more)),
        features_BTF=torch.cat([batch.features_BTF, garbage], dim=1),
        anchors_BA=torch.cat([batch.anchors_BA, batch.anchors_BA[:, -1:].expand(B, extra)], dim=1),
        keep_BA=F.pad(batch.keep_BA, (0, extra)),
    )


def test_spec7_09_packed_equals_unpacked(spec: DrafterSpec) -> None:
    """We pad rather than pack: rows of different lengths, batched together or alone, have the same losses."""
    drafter = make_drafter(spec)
    short, long = make_batch(spec, 1, length=18, num_anchors=4, seed=2), make_batch(spec, 1, length=30, num_anchors=7, seed=2)
    long = replace(long, embed_VD=short.embed_VD)
    padded = pad(short, 30, 7)
    both = {name: torch.cat([value, getattr(long, name)]) for name, value in vars(padded).items() if name != "embed_VD"}
    together = replace(padded, **both)
    ce_BAS = together.ce_BAS(drafter)
    torch.testing.assert_close(ce_BAS[0, :4], short.ce_BAS(drafter)[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ce_BAS[1], long.ce_BAS(drafter)[0], atol=1e-5, rtol=1e-5)
    assert ce_BAS[0, 4:].abs().max() == 0


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_spec7_10_padded_blocks(spec: DrafterSpec, attention: str) -> None:
    """Padded anchors change no gradient and make no NaN; a row without any valid anchor (all 0) adds exactly nothing."""
    drafter, objective = make_drafter(spec), make_objective(ObjectiveConfig(), spec.block_size)
    batch = make_batch(spec, num_rows=2)
    batch.anchors_BA[1], batch.keep_BA[1] = 0, False
    _, mask_BAS = batch.labels(spec)
    padded = pad(batch, 44, 11)
    _, padded_mask_BAS = padded.labels(spec)
    assert objective.denominator(mask_BAS) == objective.denominator(padded_mask_BAS)
    expected = gradients(drafter, objective.loss_sum(batch.ce_BAS(drafter, attention), mask_BAS))
    ours = gradients(drafter, objective.loss_sum(padded.ce_BAS(drafter, attention), padded_mask_BAS))
    for one, other in zip(ours, expected, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    nothing = batch.rows(1)
    gradient = gradients(drafter, objective.loss_sum(nothing.ce_BAS(drafter, attention), nothing.labels(spec)[1]))
    assert all(torch.equal(one, torch.zeros_like(one)) for one in gradient)
