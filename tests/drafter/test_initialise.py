"""Initial weights start near ln(V), come from the target where asked, and follow from the seed."""

import math
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PhiConfig, PhiForCausalLM

from dflash_core.config import DrafterConfig
from dflash_core.drafter.head_loss import head_cross_entropy
from dflash_core.drafter.initialise import Probe, initialise, source_layers
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import from_target
from dflash_core.target.model import Target


@pytest.fixture(scope="module")
def target() -> Target:
    """Tied embedding of large rows: normed, the mask row is worth 30 nats more to itself than to others."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, vocab_size=200,
        tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=1.0)
    return Target(model, Path("tiny"))


def fresh(target: Target, mode: str, seed: int = 0) -> Drafter:
    spec = from_target(target.config, DrafterConfig(num_layers=2, block_size=4, num_features=2), mask_token_id=199)
    drafter = Drafter(spec)
    initialise(drafter, target, mode, seed, probe(target))
    return drafter


def probe(target: Target) -> Probe:
    """Random tokens, with the target's own guesses as their answers."""
    ids = torch.randint(0, 200, (96,), generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return Probe((ids,), target.model(ids[None]).logits[0].argmax(-1))


def loss(drafter: Drafter, target: Target) -> float:
    """Mean cross-entropy of the target's own guesses on fresh tokens."""
    torch.manual_seed(3)
    ids = torch.randint(0, 200, (1, 60))
    anchors = torch.arange(5, 50, 3)[None]
    block_ids = torch.full((1, anchors.shape[1], 4), 199)
    block_ids[..., 0] = ids[0, anchors]
    labels = target.model(ids).logits[0].argmax(-1)[anchors[0][:, None] + torch.arange(3)]
    with torch.no_grad():
        features = target.features(ids, drafter.spec.target_layer_ids)
        hidden = drafter(features, target.embed(block_ids), anchors, label_slots_only=True)
        return head_cross_entropy(hidden.flatten(0, 2), target.head_weight_VD, labels.flatten()).ce_N.mean().item()


@pytest.mark.parametrize("mode", ["random", "target"])
def test_starts_near_the_uniform_loss(target: Target, mode: str) -> None:
    drafter = fresh(target, mode)
    assert loss(drafter, target) <= math.log(200) + 0.5
    with torch.no_grad():
        drafter.norm.weight.fill_(1.0)
    assert loss(drafter, target) > math.log(200) + 2.0  # what the naive start costs


def test_real_labels_decide_the_scale(target: Target) -> None:
    """Labels that the mask row disfavours need a smaller norm than those it favours."""
    logits = target.embed(torch.tensor([199])) @ target.head_weight_VD.T
    order = logits[0].argsort()
    scales = []
    for labels in (order[:20], order[-20:]):
        drafter = Drafter(from_target(target.config, DrafterConfig(num_layers=2, block_size=4, num_features=2), mask_token_id=199))
        initialise(drafter, target, "random", 0, Probe(probe(target).rows, labels))
        scales.append(drafter.norm.weight.mean().item())
    assert scales[0] < 0.5 * scales[1]


def test_probe_cuts_rows_to_few_lengths() -> None:
    rows = [torch.arange(n) for n in (5, 64, 100, 200)]
    cut = Probe.of(rows, [row % 2 == 1 for row in rows])
    assert [len(row) for row in cut.rows] == [5, 64, 64, 192]
    assert cut.labels_N.tolist() == [i for row in rows for i in row.tolist() if i % 2]


@pytest.mark.parametrize("mode", ["random", "target"])
def test_follows_from_the_seed(target: Target, mode: str) -> None:
    torch.manual_seed(5)
    one = fresh(target, mode, seed=1).state_dict()
    torch.manual_seed(6)
    again, other = fresh(target, mode, seed=1).state_dict(), fresh(target, mode, seed=2).state_dict()
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_takes_the_targets_layers(target: Target) -> None:
    drafter = fresh(target, "target")
    assert source_layers(8, 2) == (6, 7)
    for layer, source in zip(drafter.layers, (6, 7), strict=True):
        theirs = target.model.model.layers[source]
        assert torch.equal(layer.self_attn.k_proj.weight, theirs.self_attn.k_proj.weight)
        assert torch.equal(layer.mlp.down_proj.weight, theirs.mlp.down_proj.weight)


def test_a_target_of_other_layers_lends_what_it_has() -> None:
    """Phi has one norm a layer and no gated MLP: queries, keys and values come from it, the MLP is random."""
    torch.manual_seed(0)
    config = PhiConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4, vocab_size=200, initializer_range=0.2)
    target = Target(PhiForCausalLM(config), Path("tiny"))
    drafter = fresh(target, "target")
    (source,) = target.decoder_layers([4])
    assert torch.equal(drafter.layers[0].self_attn.k_proj.weight, source.self_attn.k_proj.weight)
    assert torch.equal(drafter.layers[0].post_attention_layernorm.weight, source.input_layernorm.weight)
    assert loss(drafter, target) < math.log(200) + 1
