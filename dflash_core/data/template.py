"""Where each answer lies in the rendered text, by the tokenizer's own chat template.

1. {% generation %} blocks, where the template has them;
2. else the conversation is rendered a second time with a marker for each answer. The pieces between the markers
   joined with the answers (whole, or trimmed as many templates do) must give back the text exactly, which holds
   however often an answer's text occurs elsewhere, and for empty answers;
3. else (templates that look into the answer, such as those that part reasoning from it) the text must go on from
   each generation prompt with the answer.

A template that rewrites answers fits none of these and is refused.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dflash_core.data.spellings import Turn
from dflash_core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Rendered = TypeVar("Rendered")
Span = tuple[int, int]
TRIMS: tuple[Callable[[str], str], ...] = (str, str.strip, str.lstrip, str.rstrip)
MARKER = "dflashanswer{salt}x{number}x"


def load_tokenizer(path: str, trust_remote_code: bool = False, needs_template: bool = True) -> "PreTrainedTokenizerBase":
    """The target's tokenizer, checked for what masking needs: character offsets and, unless raw text is all, a chat template.

    Raises:
        ConfigError: no tokenizer there, one without offsets, or one without a chat template.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoTokenizer

    if not Path(path).exists():
        raise ConfigError(f"{path} does not exist, expected a target's directory. Correct target.path.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError, StrictDataclassError) as error:  # a broken config.json, too
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{path} has no tokenizer that loads ({reason}), expected tokenizer.json. Correct target.path."
        ) from None
    if not tokenizer.is_fast:
        raise ConfigError(f"The tokenizer in {path} gives no character offsets, expected a fast one. Add its tokenizer.json.")
    if needs_template:
        chat_template(tokenizer)
    return tokenizer


def chat_template(tokenizer: "PreTrainedTokenizerBase") -> str:
    """The template's text. Raises ConfigError where there is none, or several and no default."""
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"The tokenizer in {tokenizer.name_or_path} has no chat template to use ({reason}), expected exactly one. "
            "Add chat_template.jinja."
        ) from None


@lru_cache(maxsize=4)
def _control_texts(tokenizer: "PreTrainedTokenizerBase") -> tuple[str, ...]:
    return tuple(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)


def control_token_in(tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn]) -> str | None:
    """A special token that some turn spells out, if any: it would become that token and end or fake a turn."""
    texts = [turn.content for turn in turns]
    return next((control for control in _control_texts(tokenizer) if any(control in text for text in texts)), None)


def render(tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn]) -> tuple[str, list[Span]]:
    """The rendered text and the character span of each assistant turn in it."""
    template = chat_template(tokenizer)
    if "generation" in template and "endgeneration" in template:
        text, spans = _generation_spans(tokenizer, template, turns)
        if len(spans) == sum(turn.role == "assistant" for turn in turns):
            return text, spans
    text = _apply(tokenizer, turns)
    spans = _marker_spans(tokenizer, turns, text) or _prompt_spans(tokenizer, turns, text)
    if spans is None:
        raise DataError(
            "The chat template rewrites an answer of this conversation, expected the answer's own text in the rendered one. "
            "Write answers as the model itself writes them, or split the conversation into single turns."
        )
    return text, spans


def prompt_ids(tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn]) -> list[int]:
    """Tokens of the rendered turns up to where the next answer begins. Raises DataError where the template refuses them."""
    text = _apply(tokenizer, turns, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def _apply(tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn], add_generation_prompt: bool = False) -> str:
    return _refusing(
        lambda: tokenizer.apply_chat_template(_messages(turns), tokenize=False, add_generation_prompt=add_generation_prompt)
    )


def _refusing(render: Callable[[], Rendered]) -> Rendered:
    from jinja2 import TemplateError

    try:
        return render()
    except (TemplateError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"The chat template refuses this conversation ({reason}), expected one that it can render. "
            "Drop such rows, or the system turn if it is that."
        ) from None


def _generation_spans(tokenizer: "PreTrainedTokenizerBase", template: str, turns: Sequence[Turn]) -> tuple[str, list[Span]]:
    """Spans of the {% generation %} blocks.

    `apply_chat_template(return_assistant_tokens_mask=True)` marks every token that overlaps a block, also one that
    begins before it, so the character spans behind that mask are taken instead (transformers 5.24, same renderer).
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, spans = _refusing(
        lambda: render_jinja_template(
            conversations=[_messages(turns)],
            chat_template=template,
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
    )
    return texts[0], [(start, end) for start, end in spans[0]]


def _marker_spans(tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn], text: str) -> list[Span] | None:
    salt = 0
    while MARKER.format(salt=salt, number="")[:-1] in text:
        salt += 1
    answers = [turn.content for turn in turns if turn.role == "assistant"]
    markers = [MARKER.format(salt=salt, number=number) for number in range(len(answers))]
    pending = iter(markers)
    marked = _apply(tokenizer, [Turn(t.role, next(pending)) if t.role == "assistant" else t for t in turns])
    pieces = []
    for marker in markers:
        piece, found, marked = marked.partition(marker)
        if not found:
            return None
        pieces.append(piece)
    for trim in TRIMS:
        spans, position = [], 0
        for piece, answer in zip(pieces, map(trim, answers), strict=True):
            spans.append((position + len(piece), position + len(piece) + len(answer)))
            position = spans[-1][1]
        if text == "".join(piece + trim(answer) for piece, answer in zip(pieces, answers, strict=True)) + marked:
            return spans
    return None


def _prompt_spans(tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn], text: str) -> list[Span] | None:
    spans = []
    for number, turn in enumerate(turns):
        if turn.role == "assistant":
            prompt = _apply(tokenizer, turns[:number], add_generation_prompt=True)
            if not text.startswith(prompt + turn.content):
                return None
            spans.append((len(prompt), len(prompt) + len(turn.content)))
    return spans
