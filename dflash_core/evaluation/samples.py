"""Sample answers token by token, each with who gave it, for a coloured report."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash_core.evaluation.compare import PromptResult
from dflash_core.evaluation.decode import Decoded
from dflash_core.evaluation.records import Piece, SampleDecode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_SAMPLES = 8


def sample_decodes(tokenizer: "PreTrainedTokenizerBase", results: Sequence[PromptResult]) -> tuple[SampleDecode, ...]:
    """The first answers; prompts come category by category in turn, so these cover the categories."""
    return tuple(
        SampleDecode(
            sample_id=r.prompt.sample_id,
            category=r.prompt.category,
            prompt=tokenizer.decode(list(r.prompt.prompt_ids)),
            tau=sum(r.speculative.rounds) / len(r.speculative.rounds) if r.speculative.rounds else None,
            pieces=token_pieces(tokenizer, r.speculative),
        )
        for r in results[:NUM_SAMPLES]
    )


def token_pieces(tokenizer: "PreTrainedTokenizerBase", decoded: Decoded) -> tuple[Piece, ...]:
    """Text of each token: round 0 is the prefill's, and in each round the accepted drafts come before the target's own."""
    kinds = [("first", 0)]
    for number, (committed, drafts) in enumerate(zip(decoded.rounds, decoded.drafts, strict=True), start=1):
        start = len(kinds)
        given = decoded.tokens[start : start + committed]
        accepted = next((k for k, (a, b) in enumerate(zip(given, drafts, strict=False)) if a != b), min(committed, len(drafts)))
        kinds += [("draft" if k < accepted else "bonus", number) for k in range(committed)]
    texts = split_text(tokenizer, decoded.tokens)
    return tuple(Piece(text=text, kind=kind, round=number) for text, (kind, number) in zip(texts, kinds, strict=True))


def split_text(tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[int]) -> list[str]:
    """Text that each token adds; a character spread over several tokens comes whole with its last one."""
    texts, shown = [], ""
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(list(tokens[:end]), clean_up_tokenization_spaces=False)
        if text.endswith("\ufffd") and end < len(tokens):
            texts.append("")
            continue
        texts.append(text[len(shown) :])
        shown = text
    return texts
