"""Holds both export forms to other programs' own loaders, and the drafter's numbers to z-lab's code.

    python benchmarks/interop.py --target DIR --loaders DIR [--drafter DIR] [--out results.json]

`--loaders` holds load_with_zlab.py and load_with_speculators.py, which need the packages dflash 0.1.0 and
speculators 0.9.0 in this environment; the product itself imports neither. Without --drafter a random one is made for
the target. Exit 0 only if both loaders exit 0 and the hidden states of one block agree to 1e-3.
Dims: T context rows, K block slots, D hidden, F features width.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from dflash_core.checkpoint.export import export_speculators, export_zlab
from dflash_core.checkpoint.export.speculators import read_target_embeddings
from dflash_core.checkpoint.exported import load_drafter
from dflash_core.config import DrafterConfig
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import from_target

NUM_CONTEXT = 23
TOLERANCE = 1e-3  # float32 hidden states after the final norm, of order 1


def random_drafter(target_dir: Path) -> Drafter:
    """Two layers on four features of the target, all weights random, norms included."""
    config = transformers.AutoConfig.from_pretrained(target_dir).get_text_config()
    count = min(4, config.num_hidden_layers - 3) if config.num_hidden_layers > 4 else 1
    spec = from_target(config, DrafterConfig(num_layers=2, block_size=8, num_features=count), config.vocab_size - 1)
    torch.manual_seed(0)
    drafter = Drafter(spec)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(0.05 * torch.randn_like(parameter) + (parameter.dim() == 1))
    return drafter


def run_loader(script: Path, *arguments: str) -> dict[str, object]:
    """Run one loader; its exit code and report."""
    command = [sys.executable, str(script), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    report = json.loads(lines[-1]) if lines else {"errors": [done.stderr[-2000:]]}
    return {"exit": done.returncode, "errors": report.get("errors"), "warnings": report.get("warnings"), "report": report}


def block_difference(script: Path, exported: Path, target_dir: Path, scratch: Path) -> float:
    """Largest difference of hidden states between z-lab's forward and ours, for one block after a random context."""
    drafter = load_drafter(exported)
    spec = drafter.spec
    embedding_VD, head_VD = (tensor.float() for tensor in read_target_embeddings(target_dir))
    features_1TF = torch.randn(1, NUM_CONTEXT, spec.features_size, generator=torch.Generator().manual_seed(1))
    block_ids_K = torch.tensor([5] + [spec.mask_token_id] * (spec.block_size - 1))
    inputs, dump = scratch / "inputs.pt", scratch / "dump.pt"
    torch.save({"target_hidden": features_1TF, "block_ids": block_ids_K, "embed": embedding_VD, "head": head_VD}, inputs)
    run_loader(script, str(exported), "--target", str(target_dir), "--prompts", "0", "--inputs", str(inputs), "--dump", str(dump))
    theirs_KD = torch.load(dump, weights_only=True)["hidden"][0]
    with torch.inference_mode():
        embeds_1KD = embedding_VD[block_ids_K][None] * spec.embedding_scale
        cached_KD = drafter.propose(features_1TF, embeds_1KD, drafter.new_cache())[0]
        trained_KD = drafter(features_1TF, embeds_1KD[:, None], torch.tensor([[NUM_CONTEXT]]))[0, 0]
    # z-lab multiplies embeddings by input_embedding_scale in its decoding loop, so the raw rows above are only equal at 1.
    assert spec.embedding_scale == 1.0, spec.embedding_scale
    return max((theirs_KD - ours_KD).abs().max().item() for ours_KD in (cached_KD, trained_KD))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="directory of the target, safetensors")
    parser.add_argument("--loaders", type=Path, required=True, help="directory of the two loader scripts")
    parser.add_argument("--drafter", type=Path, help="an export in z-lab's layout; default: a random drafter")
    parser.add_argument("--out", type=Path, help="write the results here too")
    options = parser.parse_args()
    drafter = load_drafter(options.drafter) if options.drafter else random_drafter(options.target)
    zlab_script, speculators_script = options.loaders / "load_with_zlab.py", options.loaders / "load_with_speculators.py"
    target = str(options.target.resolve())
    with tempfile.TemporaryDirectory() as scratch:
        zlab, speculators = Path(scratch) / "zlab", Path(scratch) / "speculators"
        export_zlab(drafter.state_dict(), drafter.spec, target, zlab, {})
        export_speculators(drafter.state_dict(), drafter.spec, target, speculators, {})
        results = {
            "zlab": run_loader(zlab_script, str(zlab), "--target", target),
            "speculators": run_loader(speculators_script, str(speculators)),
            "block_difference": block_difference(zlab_script, zlab, options.target, Path(scratch)),
        }
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name in ("zlab", "speculators"):
        found = results[name]
        print(f"{name}: exit {found['exit']} {found['errors'] or ''}", *(found["warnings"] or []), sep="\n  ")
    print(f"hidden states of a block: largest difference to z-lab's code {results['block_difference']:.1e}")
    ok = results["zlab"]["exit"] == results["speculators"]["exit"] == 0 and results["block_difference"] < TOLERANCE
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
