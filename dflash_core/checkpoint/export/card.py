"""The model card of an export: what it is, for which target, from where, how good, and whether a replay has proven it."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_core.drafter.spec import DrafterSpec

CARD = "README.md"
UNPROVEN, PROVEN = "unproven", "proven"
_VERDICTS = {
    UNPROVEN: "No replay has checked this checkpoint yet; don't serve it.",
    PROVEN: "A fresh process loaded this checkpoint, replayed the run's next steps and found what the run had found.",
}
# What a person looks for first, in words; all other entries of the lineage follow under their own names.
_WORDS = {
    "target_path": "target",
    "target_identity": "target's digest",
    "dataset": "data version",
    "status": "proof by replay",
    "init": "started from",
}
_USE = """
## Use

```python
drafter = AutoModel.from_pretrained(DIRECTORY, dtype=target.dtype)  # no remote code
target.generate(**inputs, assistant_model=drafter, speculation_type="dflash", do_sample=False)
```
"""


def model_card(spec: DrafterSpec, lineage: Mapping[str, Any]) -> str:
    """README.md of an export; `lineage` is lineage.json, with `status`, `layout` and `target_path` in it."""
    status, layout = lineage["status"], lineage["layout"]
    entries = {words: lineage.get(key, "not recorded") for key, words in _WORDS.items()}
    entries |= {"acceptance length τ": _acceptance_in_words(lineage.get("acceptance_length"))}
    entries |= {key: value for key, value in lineage.items() if key not in (*_WORDS, "acceptance_length")}
    rows = "\n".join(f"| {name} | `{value}` |" for name, value in entries.items())
    return f"""---
tags: [dflash, speculative-decoding, {status}]
---
# DFlash drafter for {Path(lineage["target_path"]).name}

**Status: {status}.** {_VERDICTS[status]}

Drafts {spec.block_size - 1} tokens a block for the target below, from the outputs of its layers
{list(spec.target_layer_ids)} (0-based, of {spec.num_target_layers}). {spec.num_layers} layers, mask row {spec.mask_token_id}.
Embedding and LM head are the target's.

| | |
| --- | --- |
{rows}
{_USE if layout == "transformers" else _serving(spec, layout, lineage["target_path"])}"""


def _serving(spec: DrafterSpec, layout: str, target_path: str) -> str:
    """How vLLM, and SGLang where it reads the layout, take this drafter; DIRECTORY is where this card lies."""
    # Both count what is drafted, in other words: vLLM without the anchor, SGLang the whole block.
    speculative = json.dumps({"method": "dflash", "model": "DIRECTORY", "num_speculative_tokens": spec.block_size - 1})
    target = shlex.quote(target_path)
    commands = [f"vllm serve {target} --speculative-config '{speculative}'"]
    if layout == "z-lab":
        options = f"--speculative-draft-model-path DIRECTORY --speculative-num-draft-tokens {spec.block_size}"
        commands.append(f"python -m sglang.launch_server --model-path {target} --speculative-algorithm DFLASH \\\n  {options}")
    shown = "\n\n".join(f"```bash\n{command}\n```" for command in commands)
    return f"""
## Serve

The commands that {"vLLM and SGLang document" if len(commands) > 1 else "vLLM documents"} for such a drafter; DIRECTORY is where this card lies.
They were not run for this one.

{shown}
"""


def _acceptance_in_words(measured: Mapping[str, Any] | None) -> str:
    """τ with its interval, and how it was found."""
    if measured is None:
        return "not measured"
    low, high = measured["tau_low"], measured["tau_high"]
    interval = f" (95 %: {low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    return f"{measured['tau']:.2f}{interval}, by {measured['measured_by']} over {measured['num_rounds']} rounds"
