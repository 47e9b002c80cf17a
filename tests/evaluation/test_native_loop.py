"""The export in transformers' own DFlash loop: the target's text and our rounds, prompt by prompt."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from dflash_core.config import TargetConfig
from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.decode import target_greedy
from dflash_core.target.model import Target

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts, no package
native_decode = importlib.import_module("native_decode")
LENGTH, BLOCK_STEPS = 24, 40


def learn(drafter: Drafter, target: Target, prompts: Sequence[Sequence[int]]) -> Drafter:
    """Learn the answers to these prompts by heart, in part: some blocks are accepted, some are not."""
    texts = [torch.tensor([[*ids, *target_greedy(target, ids, LENGTH, ()).tokens]]) for ids in prompts]
    rows = [(text, target.features(text, drafter.spec.target_layer_ids), torch.arange(1, text.shape[1] - 5)[None]) for text in texts]
    optimizer = torch.optim.Adam(drafter.parameters(), lr=5e-3)
    for step in range(BLOCK_STEPS):
        text_1T, features_1TF, anchors_1A = rows[step % len(rows)]
        ids_1AK = torch.full((1, anchors_1A.shape[1], drafter.spec.block_size), drafter.spec.mask_token_id)
        ids_1AK[..., 0] = text_1T[0, anchors_1A]
        hidden_1ASD = drafter(features_1TF, target.embed(ids_1AK), anchors_1A, label_slots_only=True)
        labels_1AS = text_1T[0, anchors_1A[..., None] + torch.arange(1, drafter.spec.block_size)]
        optimizer.zero_grad()
        F.cross_entropy(hidden_1ASD.flatten(0, 2) @ target.head_weight_VD.T, labels_1AS.flatten()).backward()
        optimizer.step()
    return drafter


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_native_loop_gives_the_target_s_text_in_the_same_rounds(
    target_dirs: dict[str, Path], family: str, lab: SimpleNamespace, tmp_path: Path
) -> None:
    target, prompts = Target.load(TargetConfig(path=str(target_dirs[family]), dtype="float32")), lab.prompts(4)
    drafter = learn(lab.random_drafter(), target, prompts)
    assistant = native_decode.load_native(drafter, target.path, tmp_path / "native")
    for stops in ((), (5, 17, 40, 62, 81)):
        found = native_decode.compare(target, drafter, assistant, prompts, LENGTH, stops, repeats=1)
        assert found.equal_text == found.equal_text_native == found.equal_rounds == found.num_prompts == 4
        assert stops or 1.2 < found.tau < lab.BLOCK - 0.5, found.tau  # drafts were accepted, and drafts were refused


def test_a_drafter_that_differs_shows_in_the_rounds(llama: Target, lab: SimpleNamespace, tmp_path: Path) -> None:
    prompts = lab.prompts(4)
    drafter = learn(lab.random_drafter(), llama, prompts)
    assistant = native_decode.load_native(lab.random_drafter(), llama.path, tmp_path / "native")
    found = native_decode.compare(llama, drafter, assistant, prompts, LENGTH, (), repeats=1)
    assert found.equal_text_native == 4 and found.equal_rounds < 4
