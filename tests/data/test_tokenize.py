"""The masked tokens decode to exactly what the assistant has to write."""

import itertools

import numpy as np
import pytest

from dflash_core.data.conversations import Turn
from dflash_core.data.template import load_tokenizer, render
from dflash_core.data.tokenize import render_and_mask
from dflash_core.errors import ConfigError, DataError

END = "<|im_end|>"
HEADER = "{{ '<|im_start|>' + m['role'] + '\n' }}"
TEMPLATES = {
    "plain": None,  # conftest's ChatML
    "generation without stop": "{% for m in messages %}" + HEADER + "{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}",
    "generation with stop and newline": "{% for m in messages %}" + HEADER + "{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + '<|im_end|>\n' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}",
    "default system turn": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nI am fine.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}" + HEADER + "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}",
}
ANSWERS = [
    "I am fine, thank you.",
    "",
    "Hi?",  # the same text as the question
    "assistant",  # the same text as the header
    "你好世界 👩‍👩‍👧 naïve émigré 🙂",
    "👩‍👩‍👧",
    "🙂",
    "two spaces behind  ",
    "lines\n\n",
    "def f(x):\n    return x + 1\n",
    "ends in a thought</think>",
    "a\u2028b\u00a0c\u200b",
]


def masked_text(tokenizer, tokens) -> str:
    assert tokens.input_ids.dtype == np.int32 and tokens.loss_mask.dtype == np.bool_
    assert len(tokens.input_ids) == len(tokens.loss_mask)
    return tokenizer.decode(tokens.input_ids[tokens.loss_mask], skip_special_tokens=False)


@pytest.mark.parametrize("trim_offsets", [False, True], ids=["offsets", "trimmed offsets"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_masked_tokens_decode_to_the_answers(name, trim_offsets, make_tokenizer):
    tokenizer = make_tokenizer(trim_offsets=trim_offsets)
    tokenizer.chat_template = TEMPLATES[name] or tokenizer.chat_template
    for first, second in itertools.product(ANSWERS, ANSWERS):
        turns = [Turn("user", "Hi?"), Turn("assistant", first), Turn("user", "And?"), Turn("assistant", second)]
        tokens = render_and_mask(tokenizer, turns, 1000)
        assert masked_text(tokenizer, tokens) == first + END + second + END
        assert not tokens.truncated


@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_are_those_of_the_template(name, make_tokenizer):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[name] or tokenizer.chat_template
    turns = [Turn("system", "Be brief."), Turn("user", "Hi?"), Turn("assistant", "Hello 🙂.")]
    plain = tokenizer.apply_chat_template([{"role": t.role, "content": t.content} for t in turns])["input_ids"]
    assert render_and_mask(tokenizer, turns, 1000).input_ids.tolist() == plain


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_unfinished_answer_teaches_no_stop(name, answer, make_tokenizer):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[name] or tokenizer.chat_template
    turns = [Turn("user", "Hi?"), Turn("assistant", "Yes."), Turn("user", "And?"), Turn("assistant", answer)]
    tokens = render_and_mask(tokenizer, turns, 1000, finished=False)
    assert masked_text(tokenizer, tokens) == "Yes." + END + answer
    assert answer == "" or tokens.loss_mask[-1]
    whole = render_and_mask(tokenizer, turns, 1000)
    assert tokens.input_ids.tolist() == whole.input_ids[: len(tokens.input_ids)].tolist()


def bytes_of_tokens(tokenizer, input_ids) -> list[bytes]:
    """What each token of a byte-level tokenizer spells, from its own alphabet and without offsets."""
    byte_of = {}
    spare = 0
    for byte in range(256):  # GPT-2's table: printable bytes stand for themselves, the others from U+0100 on
        plain = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        byte_of[chr(byte) if plain else chr(256 + spare)] = byte
        spare += not plain
    added = tokenizer.added_tokens_decoder
    tokens = tokenizer.convert_ids_to_tokens(input_ids.tolist())
    return [
        added[token_id].content.encode() if token_id in added else bytes(byte_of[c] for c in token)
        for token_id, token in zip(input_ids.tolist(), tokens, strict=True)
    ]


def reference_mask(tokenizer, text: str, spans: list[tuple[int, int]], input_ids) -> list[bool]:
    """Plain reference by bytes: inside an answer, or the stop token right behind one."""
    pieces = bytes_of_tokens(tokenizer, input_ids)
    assert b"".join(pieces) == text.encode()
    spans = [(len(text[:start].encode()), len(text[:end].encode())) for start, end in spans]
    mask, position = [], 0
    for piece in pieces:
        first, position = position, position + len(piece)
        inside = any(start <= first and position <= end for start, end in spans)
        mask.append(inside or (piece == END.encode() and any(first == end for _, end in spans)))
    return mask


SPACED = ["  two spaces around  ", "\n\nlines\n\n", " ", "\n", "   Hello", " the", "the\n\n\n", " 🙂", "\n\n🙂\n"]


@pytest.mark.parametrize("trim_offsets", [False, True], ids=["offsets", "trimmed offsets"])
@pytest.mark.parametrize("header_end", ["\\n", ": "])
def test_mask_equals_the_reference_where_tokens_merge_across_the_start(header_end, trim_offsets, make_tokenizer):
    template = "{% for m in messages %}{{ m['role'] + '" + header_end + "' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    tokenizer = make_tokenizer(template, trim_offsets=trim_offsets)
    merged = 0
    for first, second in itertools.product(SPACED + ANSWERS, SPACED + ANSWERS):
        turns = [Turn("user", "Hi?"), Turn("assistant", first), Turn("user", "And?"), Turn("assistant", second)]
        tokens = render_and_mask(tokenizer, turns, 1000)
        text, spans = render(tokenizer, turns)
        assert [text[start:end] for start, end in spans] == [first, second]
        assert tokens.loss_mask.tolist() == reference_mask(tokenizer, text, spans, tokens.input_ids)
        merged += masked_text(tokenizer, tokens) != first + END + second + END
    assert merged > 0


def test_truncation_keeps_a_prefix(make_tokenizer):
    tokenizer = make_tokenizer()
    turns = [Turn("user", "Hi?"), Turn("assistant", "I am fine, thank you. 🙂 The quick brown fox.")]
    whole = render_and_mask(tokenizer, turns, 1000)
    for limit in range(1, len(whole.input_ids) + 1):
        cut = render_and_mask(tokenizer, turns, limit)
        assert cut.input_ids.tolist() == whole.input_ids[:limit].tolist()
        assert cut.loss_mask.tolist() == whole.loss_mask[:limit].tolist()
        assert cut.truncated == (limit < len(whole.input_ids))


def test_a_token_across_the_start_is_not_supervised(make_tokenizer):
    """A template that ends its header with a space merges it with the answer's first word."""
    for trim_offsets in (False, True):
        tokenizer = make_tokenizer(
            "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|im_end|>' }}{% endfor %}", trim_offsets=trim_offsets
        )
        tokens = render_and_mask(tokenizer, [Turn("user", "Hi?"), Turn("assistant", "Hello there")], 1000)
        pieces = [tokenizer.decode([token]) for token in tokens.input_ids]
        assert " Hello" in pieces, pieces  # the merge is there
        assert not tokens.loss_mask[pieces.index(" Hello")]
        assert masked_text(tokenizer, tokens) == " there" + END


def test_a_token_across_the_end_is_not_supervised(make_tokenizer):
    tokenizer = make_tokenizer("{% for m in messages %}{{ m['role'] + '\n' + m['content'] + 'llo.' }}{% endfor %}")
    tokens = render_and_mask(tokenizer, [Turn("user", "Hi?"), Turn("assistant", "Fine. He")], 1000)
    assert " Hello" in [tokenizer.decode([token]) for token in tokens.input_ids]
    assert masked_text(tokenizer, tokens) == "Fine."


def test_sentencepiece_like_tokenizer(make_tokenizer):
    tokenizer = make_tokenizer(byte_level=False)
    for answer in ("I am fine, thank you.", "hello 你好 🙂 naïve", "🙂🙂", "a  b", ""):
        turns = [Turn("user", "Hi? 🙂"), Turn("assistant", answer), Turn("user", "x"), Turn("assistant", answer)]
        assert masked_text(tokenizer, render_and_mask(tokenizer, turns, 1000)) == (answer + END) * 2


def test_a_template_that_trims_answers(make_tokenizer):
    tokenizer = make_tokenizer("{% for m in messages %}" + HEADER + "{{ m['content'] | trim + '<|im_end|>\n' }}{% endfor %}")
    turns = [Turn("user", " Hi? "), Turn("assistant", "  Hello \n"), Turn("user", "x"), Turn("assistant", "   ")]
    assert masked_text(tokenizer, render_and_mask(tokenizer, turns, 1000)) == "Hello" + END + END


REASONING = (
    "{% for m in messages %}" + HEADER + "{% if m['role'] == 'assistant' and '</think>' in m['content'] %}"
    "{% if loop.last %}{{ '<think>\n' + m['content'].split('</think>')[0].split('<think>')[-1].strip() + '\n</think>\n\n' "
    "+ m['content'].split('</think>')[-1].strip() }}{% else %}{{ m['content'].split('</think>')[-1].strip() }}{% endif %}"
    "{% elif m['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' + m['content'] }}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_template_that_parts_reasoning(make_tokenizer):
    """Qwen3's way: an empty thought is the template's, a written one is the assistant's; an earlier one is cut out."""
    tokenizer = make_tokenizer(REASONING)
    thought = "<think>\nhm\n</think>\n\nFine."
    for answer in ("Fine.", thought):
        tokens = render_and_mask(tokenizer, [Turn("user", "Hi?"), Turn("assistant", answer)], 1000)
        assert masked_text(tokenizer, tokens) == answer + END
    rewritten = [Turn("user", "Hi?"), Turn("assistant", thought), Turn("user", "x"), Turn("assistant", "y")]
    with pytest.raises(DataError, match="rewrites an answer"):
        render_and_mask(tokenizer, rewritten, 1000)


@pytest.mark.parametrize("change", ["upper", "replace('l', 'L')", "truncate(3, True, '')"])
def test_a_template_that_rewrites_answers_is_refused(change, make_tokenizer):
    content = f"(m['content'] | {change})" if "replace" not in change else f"m['content'].{change}"
    tokenizer = make_tokenizer("{% for m in messages %}" + HEADER + "{{ " + content + " + '<|im_end|>\n' }}{% endfor %}")
    with pytest.raises(DataError, match="rewrites an answer"):
        render_and_mask(tokenizer, [Turn("user", "Hi?"), Turn("assistant", "Hello there")], 1000)


def test_a_template_that_refuses_is_reported(make_tokenizer):
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}hi"
    tokenizer = make_tokenizer(template)
    with pytest.raises(DataError, match="System role not supported"):
        render(tokenizer, [Turn("system", "x"), Turn("user", "Hi?"), Turn("assistant", "Hello")])


def test_the_marker_in_the_text_is_avoided(make_tokenizer):
    tokenizer = make_tokenizer()
    answer = "dflashanswer0x0x and dflashanswer1x0x"
    tokens = render_and_mask(tokenizer, [Turn("user", answer), Turn("assistant", answer)], 1000)
    assert masked_text(tokenizer, tokens) == answer + END


def test_a_tokenizer_without_a_template_is_refused(make_tokenizer, tmp_path):
    make_tokenizer(None).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no chat template"):
        load_tokenizer(str(tmp_path))
