"""Holds our forward and per-slot losses against z-lab's and speculators' own code, on the same weights.

    PYTHONPATH=. python benchmarks/loss_parity.py

Needs dflash 0.1.0 and speculators 0.9.0 installed, which the product itself never imports. Prints the
largest difference of each comparison, and exits 1 if one exceeds its limit (1e-5 for losses).

Dims: T tokens, A anchors, K block slots, S = K-1, D hidden, F features width, V vocab.
"""

import sys
import tempfile
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_core.drafter.head_loss import head_cross_entropy
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.objectives import DecayedCrossEntropy
from dflash_core.drafter.spec import DrafterSpec

LIMIT_LOSS, LIMIT_HIDDEN = 1e-5, 1e-4
T, A, VOCAB, GAMMA = 96, 12, 300, 4.0
SPEC = DrafterSpec(
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    num_layers=3,
    block_size=8,
    mask_token_id=VOCAB - 1,
    target_layer_ids=(1, 3, 5),
    num_target_layers=8,
    vocab_size=VOCAB,
    rope_theta=1e6,
)


def make_drafter() -> Drafter:
    """Weights large enough that every part of the network matters."""
    drafter = Drafter(SPEC)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.1 + (1.0 if parameter.dim() == 1 else 0.0))
    return drafter


def zlab_hidden(drafter: Drafter, features_1TF: Tensor, embeds_KD: Tensor, anchor: int) -> Tensor:
    """Hidden_KD of one block by z-lab's DFlashDraftModel."""
    from dflash.model import DFlashDraftModel

    config = Qwen3Config(**{k: v for k, v in SPEC.to_zlab_config().items() if k not in ("architectures", "auto_map")})
    config._attn_implementation = "sdpa"
    model = DFlashDraftModel(config).float().eval()
    model.load_state_dict(drafter.state_dict(), strict=True)
    with torch.no_grad():
        positions = torch.arange(anchor + SPEC.block_size)[None]
        return model(target_hidden=features_1TF[:, :anchor], noise_embedding=embeds_KD[None], position_ids=positions)[0]


def speculators_losses(drafter: Drafter, target: Qwen3ForCausalLM, batch: dict[str, Tensor], anchors_A: Tensor) -> tuple:
    """(ce_AK, labels_AK, mask_AK, reduced loss) by speculators' DFlashDraftModel."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig, core
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layers = Qwen3Config(
        **{k: v for k, v in SPEC.to_zlab_config().items() if k not in ("architectures", "auto_map", "dflash_config")}
    )
    layers._attn_implementation = "sdpa"
    with tempfile.TemporaryDirectory() as directory:
        target.save_pretrained(directory)
        verifier = VerifierConfig.from_pretrained(directory)
        proposal = GreedyTokenProposalConfig(speculative_tokens=SPEC.block_size - 1)
        config = DFlashSpeculatorConfig(
            transformer_layer_config=layers,
            draft_vocab_size=VOCAB,
            block_size=SPEC.block_size,
            aux_hidden_state_layer_ids=[i + 1 for i in SPEC.target_layer_ids],  # their ids count the embedding
            mask_token_id=SPEC.mask_token_id,
            speculators_config=SpeculatorsConfig(
                algorithm="dflash", proposal_methods=[proposal], default_proposal_method="greedy", verifier=verifier
            ),
        )
        model = DFlashDraftModel(config)
        model.load_verifier_weights()
    missing = model.float().eval().load_state_dict(drafter.state_dict(), strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys
    fixed = (anchors_A, torch.ones(len(anchors_A), dtype=torch.bool))
    with torch.no_grad(), mock.patch.object(core, "select_anchors", lambda *_: fixed):
        options = DFlashDraftModel.get_trainer_kwargs(
            loss_fn="ce", loss_implementation="eager", max_anchors=len(anchors_A), dflash_decay_gamma=GAMMA
        )[0]
        loss = model(**batch, **options)[1]
        _, logits, targets, mask, _ = model._backbone_forward(**batch, max_anchors=len(anchors_A))
    labels = targets.argmax(-1)[0]
    ce = F.cross_entropy(logits[0], labels, reduction="none")
    shape = (len(anchors_A), SPEC.block_size)
    return ce.view(shape), labels.view(shape), mask.view(shape).bool(), float(loss)


def main() -> None:
    torch.manual_seed(0)
    target = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=8, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, tie_word_embeddings=False, initializer_range=0.1,
        )
    ).eval()  # fmt: skip
    pre_norm: list[Tensor] = []
    target.model.norm.register_forward_pre_hook(lambda _, inputs: pre_norm.append(inputs[0]))
    ids_1T = torch.randint(0, VOCAB - 1, (1, T))
    with torch.no_grad():
        states = target(ids_1T, output_hidden_states=True).hidden_states
    features_1TF = torch.cat([states[i + 1] for i in SPEC.target_layer_ids], dim=-1)
    drafter, head_VD = make_drafter(), target.lm_head.weight.detach()
    anchors_A = torch.randperm(T - SPEC.block_size - 1)[:A].sort().values + 1
    block_ids_AK = torch.full((A, SPEC.block_size), SPEC.mask_token_id)
    block_ids_AK[:, 0] = ids_1T[0, anchors_A]
    embeds_1AKD = target.model.embed_tokens(block_ids_AK)[None].detach()
    with torch.no_grad():
        hidden_AKD = drafter(features_1TF, embeds_1AKD, anchors_A[None])[0]

    far = [zlab_hidden(drafter, features_1TF, embeds_1AKD[0, i], int(a)) - hidden_AKD[i] for i, a in enumerate(anchors_A)]
    differences = {"hidden against z-lab": (torch.stack(far).abs().max().item(), LIMIT_HIDDEN)}

    batch = {
        "hidden_states": features_1TF, "input_ids": ids_1T, "loss_mask": torch.rand(1, T) > 0.1,
        "verifier_last_hidden_states": pre_norm[0], "document_ids": torch.zeros(1, T, dtype=torch.long),
        "position_ids": torch.arange(T)[None],
    }  # fmt: skip
    theirs_AK, labels_AK, mask_AK, their_loss = speculators_losses(drafter, target, batch, anchors_A)
    labels_AS, mask_AS = labels_AK[:, 1:], mask_AK[:, 1:]
    ours_AS = head_cross_entropy(hidden_AKD[:, 1:].flatten(0, 1), head_VD, labels_AS.flatten()).ce_N.view(labels_AS.shape)
    differences["per-slot loss against speculators"] = ((ours_AS - theirs_AK[:, 1:]).abs().max().item(), LIMIT_LOSS)
    objective = DecayedCrossEntropy(GAMMA, SPEC.block_size - 1)
    # speculators divides by the number of supervised slots, not by the sum of weights (dflash_spec.md 2.2).
    reduced = objective.loss_sum(ours_AS[None], mask_AS[None]).item() / mask_AS.sum().item()
    differences["weighted sum against speculators"] = (abs(reduced - their_loss), LIMIT_LOSS)
    for name, (difference, limit) in differences.items():
        print(f"{name:36} {difference:.1e} (limit {limit:.0e})")
    sys.exit(any(difference > limit for difference, limit in differences.values()))


if __name__ == "__main__":
    main()
