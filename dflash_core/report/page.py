"""Renders the facts and figures as one HTML file that loads nothing else; the only importer of jinja2."""

import base64
from importlib import resources

import jinja2

from dflash_core.report.facts import Facts

CAPTIONS = {
    "loss": ("Loss", "Weighted cross-entropy of the step, over all its micro-batches."),
    "acceptance": (
        "Acceptance over training",
        "Streak: 1 + leading slots that the drafter got right, teacher-forced, training data. τ: held-out prompts.",
    ),
    "positions": ("Acceptance by slot", "How far into the block the drafter's tokens hold, in real decoding."),
    "rounds": ("Tokens per target forward", "The bonus token is counted, so a forward commits at least one."),
    "categories": ("By category", "95 % interval over prompts; number of prompts in brackets."),
    "lengths": ("Lengths and buckets", "Training samples; each is padded to its bucket's upper bound."),
    "optimizer": ("Learning rate and gradient norm", "Norm before clipping."),
}


def render(facts: Facts, figures: dict[str, str]) -> str:
    """The page.

    Args:
        facts: what to say.
        figures: SVG text by name. Each goes in as an image of its own, since ids of several SVGs in one page collide.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(resources.files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8"))
    images = [
        (*CAPTIONS[name], "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()) for name, svg in figures.items()
    ]
    return template.render(facts=facts, images=images)
