"""What an evaluation asks: the held-out split, or prompt sets; chosen, checked and tokenised before a model is loaded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.data.plan_manifest import check_target
from dflash_core.data.template import load_tokenizer
from dflash_core.errors import DataError
from dflash_core.evaluation.prompt_sets import PromptSet, prompts_digest, read_prompt_sets
from dflash_core.evaluation.prompts import HELDOUT, choose_prompts
from dflash_core.evaluation.records import Subjects
from dflash_core.evaluation.subjects import check_lengths, context_limit
from dflash_core.evaluation.turns import Asking, Renderer, ask_once


@dataclass(frozen=True)
class Questions:
    """Dialogues to ask.

    Attributes:
        ask: gives them anew each time.
        num_prompts: most turns that they have.
        digests: sha256 of each set by name.
        prompts_digest: of the first turns as tokens.
        left_out: turns that were too long so far, by set; it fills while they are asked.
    """

    ask: Callable[[], Iterator[Asking]]
    num_prompts: int
    digests: dict[str, str]
    prompts_digest: str
    left_out: dict[str, int]

    def described(self, subjects: Subjects) -> Subjects:
        """The subjects with what was asked of them."""
        return subjects.model_copy(
            update={"prompt_sets": self.digests, "prompts_digest": self.prompts_digest, "left_out": dict(self.left_out)}
        )


def choose_questions(config: Config, workdir: Path, prepared_dir: Path) -> Questions:
    """As `evaluation` says; paths are relative to `workdir`.

    Raises:
        ConfigError, DataError, IdentityError: see `Dataset.open`, `check_target`, `check_lengths` and `read_prompt_sets`.
    """
    settings, target_dir = config.evaluation, workdir / config.target.path
    if settings.prompt_sets:
        sets = read_prompt_sets([workdir / path for path in settings.prompt_sets], settings.num_prompts)
        return _of_sets(config, target_dir, sets)
    heldout = Dataset.open(prepared_dir, "heldout")
    check_target(heldout, target_dir)
    prompts = choose_prompts(heldout, settings.num_prompts)
    check_lengths(prompts, settings.max_new_tokens, target_dir)
    digest = prompts_digest([(p.sample_id, p.prompt_ids) for p in prompts])
    return Questions(lambda: ask_once(prompts), len(prompts), {HELDOUT: heldout.manifest.digest}, digest, {})


def _of_sets(config: Config, target_dir: Path, sets: Sequence[PromptSet]) -> Questions:
    settings, limit = config.evaluation, context_limit(target_dir)
    tokenizer = load_tokenizer(str(target_dir), config.target.trust_remote_code, needs_template=settings.template == "chat")
    longest = None if limit is None else limit - settings.max_new_tokens
    renderer = Renderer(tokenizer, settings.template, longest)
    dialogues = [dialogue for prompt_set in sets for dialogue in prompt_set.dialogues]
    firsts = [(d.sample_id, renderer.ids(d, ())) for d in dialogues]
    fitting = [d for d, (_, ids) in zip(dialogues, firsts, strict=True) if longest is None or len(ids) <= longest]
    if not fitting:
        shortest = min(len(ids) for _, ids in firsts)
        raise DataError(
            f"the shortest of {len(firsts)} prompts and {settings.max_new_tokens} new tokens make {shortest + settings.max_new_tokens} tokens, "
            f"expected at most the target's {limit}. Lower evaluation.max_new_tokens, or name other prompt sets."
        )
    return Questions(
        ask=lambda: map(renderer.ask, dialogues),
        num_prompts=sum(len(d.questions) for d in dialogues),
        digests={prompt_set.name: prompt_set.digest for prompt_set in sets},
        prompts_digest=prompts_digest(firsts),
        left_out=renderer.left_out,
    )
