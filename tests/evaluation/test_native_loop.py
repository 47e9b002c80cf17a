"""The export in transformers' own DFlash loop: the target's text and our rounds, prompt by prompt."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import native_decode
import torch
from torch.nn import functional as F

from dflash_core.config import TargetConfig
from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.decode import target_decode
from dflash_core.target.model import Target

LENGTH, NUM_STEPS = 16, 30


def learn(drafter: Drafter, target: Target, prompts: Sequence[Sequence[int]]) -> Drafter:
    """Learn the answers to these prompts by heart, in part: some blocks are accepted, some are not."""
    texts = [torch.tensor([[*ids, *target_decode(target, ids, LENGTH, ()).tokens]]) for ids in prompts]
    rows = [(text, target.features(text, drafter.spec.target_layer_ids), torch.arange(1, text.shape[1] - 5)[None]) for text in texts]
    optimizer = torch.optim.Adam(drafter.parameters(), lr=5e-3)
    for step in range(NUM_STEPS):
        text_1T, features_1TF, anchors_1A = rows[step % len(rows)]
        ids_1AK = torch.full((1, anchors_1A.shape[1], drafter.spec.block_size), drafter.spec.mask_token_id)
        ids_1AK[..., 0] = text_1T[0, anchors_1A]
        hidden_1ASD = drafter(features_1TF, target.embed(ids_1AK), anchors_1A, label_slots_only=True)
        labels_1AS = text_1T[0, anchors_1A[..., None] + torch.arange(1, drafter.spec.block_size)]
        optimizer.zero_grad()
        F.cross_entropy(hidden_1ASD.flatten(0, 2) @ target.head_weight_VD.T, labels_1AS.flatten()).backward()
        optimizer.step()
    return drafter


def test_native_loop_gives_the_target_s_text_in_our_rounds(llama: Target, lab: SimpleNamespace, tmp_path: Path) -> None:
    prompts, untaught = lab.prompts(3), native_decode.load_native(lab.random_drafter(), llama.path, tmp_path / "untaught")
    drafter = learn(lab.random_drafter(), llama, prompts)
    assistant = native_decode.load_native(drafter, llama.path, tmp_path / "native")
    for stops in ((), (5, 17, 40, 62, 81)):
        found = native_decode.compare(llama, drafter, assistant, prompts, LENGTH, stops, repeats=1)
        assert found.equal_text == found.equal_text_native == found.equal_rounds == found.num_prompts == 3
        assert stops or 1.2 < found.tau < lab.BLOCK - 0.5, found.tau  # drafts were accepted, and drafts were refused
    found = native_decode.compare(llama, drafter, untaught, prompts, LENGTH, (), repeats=1)
    assert found.equal_text_native == 3 and found.equal_rounds < 3  # another drafter shows


def test_native_loop_scales_embeddings_as_we_do(target_dirs: dict[str, Path], lab: SimpleNamespace, tmp_path: Path) -> None:
    """Proposals of one block, since an untaught drafter's are never accepted, and rounds would be equal for any."""
    target, drafter = Target.load(TargetConfig(path=str(target_dirs["gemma3"]), dtype="float32")), lab.random_drafter()
    assistant = native_decode.load_native(drafter, target.path, tmp_path / "native")
    prompt_1T = torch.tensor([lab.prompts(2)[1]])
    features_1TF = target.features(prompt_1T, drafter.spec.target_layer_ids)
    block_ids_1K = torch.tensor([[7] + [drafter.spec.mask_token_id] * 5])
    with torch.no_grad():
        theirs = assistant(noise_embeds=target.model.get_input_embeddings()(block_ids_1K), context_hidden_states=features_1TF)
        ours = drafter.propose(features_1TF, target.embed(block_ids_1K), drafter.new_cache())
    torch.testing.assert_close(ours, theirs.last_hidden_state, atol=1e-4, rtol=1e-4)
