"""Makes a tiny random target with a real tokenizer and chat template, so that the whole chain runs in a minute."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dflash_core.target.saved import is_made_from, save_target

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NUM_TOKENS = 500  # of the tokenizer; the embedding has 512 rows, so twelve are spare for the mask
NUM_ROWS = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Enough English for 241 merges; what it says is of no account.
TEXT = """
user system assistant. You are a helpful assistant. Please explain how it works, and why. Write a short story about a child who
finds a small boat at the edge of the water. List three things that you need before you start: a plan, some time, and a place to
work. The first thing is to read the question, then to write the answer in your own words. What is the sum of twelve and thirty?
The answer is forty-two. Here is an example of a function that returns the larger of two numbers: def larger(a, b): return a if a > b
else b. To make bread, mix flour, water, salt and yeast, wait until the dough has risen, and bake it for forty minutes. The people of
the village walked along the river every morning, and in the evening they came back with fish and stories. When the weather was cold
they stayed at home and told each other what they had seen. There are many ways to learn a language: reading, listening, speaking
and writing. Each of them helps, but speaking with other people is often the most useful one. In the first part we show what the
problem is; in the second part we show how it can be solved; in the third part we measure how well the solution works. Give the
result as JSON with the fields name, date and place. Rewrite the sentence so that it is easier to understand. A train leaves the
station at nine and travels at sixty kilometres an hour; when does it arrive at a town that is ninety kilometres away? It arrives at
half past ten, because ninety divided by sixty is one and a half. The moon goes around the earth, and the earth goes around the sun.
"""


def make_tiny_target(out_dir: Path, seed: int) -> None:
    """Write a random Qwen3 target: hidden 64, 6 layers, 512 embedding rows, a byte-level BPE of 500 tokens.

    Its answers mean nothing, but they are deterministic and its template marks the assistant's tokens. An earlier
    result for the same seed and versions is kept where its files verify.
    """
    source = {
        "tiny": 1, "seed": seed, "transformers": transformers.__version__, "torch": torch.__version__,
    }  # fmt: skip
    if is_made_from(Path(out_dir), source):
        return
    tokenizer = make_tiny_tokenizer()
    save_target(_random_model(tokenizer, seed), tokenizer, Path(out_dir), source)


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the text above: every string can be encoded, and decodes to itself."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    bpe.train_from_iterator(TEXT.split("\n"), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False, model_max_length=2048,
    )  # fmt: skip


def _random_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen3Config(
        vocab_size=NUM_ROWS, hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, tie_word_embeddings=True, eos_token_id=end,
        pad_token_id=pad, bos_token_id=None,
        initializer_range=0.1,  # at 0.02 and width 64 the layers add almost nothing to the embedding, and features are all alike
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):  # the caller's random state is its own
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad, do_sample=False)
    return model
