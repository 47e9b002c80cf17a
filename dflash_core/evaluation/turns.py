"""From what is asked to prompts as token ids, turn by turn: a later turn's prompt holds the target's own earlier answers."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dflash_core.data.spellings import Turn
from dflash_core.data.template import control_token_in, prompt_ids
from dflash_core.errors import DataError
from dflash_core.evaluation.prompt_sets import Dialogue
from dflash_core.evaluation.prompts import MeasuredPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Yields prompts, is sent the answer to each, and ends with the last.
Asking = Generator[MeasuredPrompt, Sequence[int], None]
BETWEEN_RAW_TURNS = "\n\n"


@dataclass
class Renderer:
    """Turns dialogues into prompts of one target.

    Attributes:
        tokenizer: the target's, loaded without the target.
        template: "chat" for its chat template, "raw" for the bare text, which the target then goes on with.
        longest: most tokens of a prompt; a longer one isn't asked, nor are the turns after it.
        left_out: how many turns that was, by set.
    """

    tokenizer: "PreTrainedTokenizerBase"
    template: Literal["chat", "raw"]
    longest: int | None
    left_out: dict[str, int] = field(default_factory=dict)

    def ask(self, dialogue: Dialogue) -> Asking:
        """The dialogue's prompts."""
        answers: list[str] = []
        for number, sample_id in enumerate(dialogue.turn_ids, start=1):
            ids = self.ids(dialogue, answers)
            if self.longest is not None and len(ids) > self.longest:
                self.left_out[dialogue.set_name] = self.left_out.get(dialogue.set_name, 0) + len(dialogue.questions) - number + 1
                return
            answer_ids = yield MeasuredPrompt(sample_id, dialogue.category, tuple(ids), set_name=dialogue.set_name, turn=number)
            answers.append(self.tokenizer.decode(list(answer_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def ids(self, dialogue: Dialogue, answers: Sequence[str]) -> list[int]:
        """The prompt of the turn after these answers.

        Raises:
            DataError: the text holds a control token, which would end or fake a turn, or the template refuses it.
        """
        turns = self._turns(dialogue, answers)
        asked = [Turn("system", dialogue.system or ""), *(Turn("user", question) for question in dialogue.questions)]  # later turns too
        if (control := control_token_in(self.tokenizer, asked)) is not None:
            raise DataError(f"{dialogue.sample_id} spells out {control!r}, which the target reads as a control token. Drop the row.")
        if self.template == "chat":
            return prompt_ids(self.tokenizer, turns)
        ids = self.tokenizer(BETWEEN_RAW_TURNS.join(turn.content for turn in turns))["input_ids"]
        if not ids:
            raise DataError(f"{dialogue.sample_id} gives 0 tokens, expected at least 1. Drop the row.")
        return ids

    @staticmethod
    def _turns(dialogue: Dialogue, answers: Sequence[str]) -> list[Turn]:
        turns = [] if dialogue.system is None else [Turn("system", dialogue.system)]
        for question, answer in zip(dialogue.questions, answers, strict=False):
            turns += [Turn("user", question), Turn("assistant", answer)]
        return [*turns, Turn("user", dialogue.questions[len(answers)])]


def ask_once(prompts: Sequence[MeasuredPrompt]) -> Iterator[Asking]:
    """Prompts that stand for themselves."""

    def asking(prompt: MeasuredPrompt) -> Asking:
        yield prompt

    return map(asking, prompts)
