"""What a promotion asks of a drafter; the form of the flow in Prefect's UI is made from this."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tasks.registry import MODEL_NAME


class PromotionSettings(BaseModel):
    """How much better a drafter must be, and who has the last word."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = Field(None, description="Registered model; empty: dflash- and the target's name.", pattern=MODEL_NAME)
    margin: Annotated[float, Field(ge=0)] = Field(
        0.0, description="The acceptance length must exceed the champion's by more than this many tokens, 0 or more."
    )
    tolerance: Annotated[float, Field(ge=0)] = Field(
        0.0, description="The lower end of the paired 95 % interval of the difference may be this many tokens below zero, 0 or more."
    )
    bootstrap_samples: Annotated[int, Field(ge=200, le=100_000)] = Field(5000, description="Draws of the paired bootstrap, 200 to 100,000.")
    by_reference: bool = Field(False, description="Register DVC's digest in place of a copy of the files.")
    approval: bool = Field(False, description="Wait for a person to approve, by a form in the UI.")
    approval_hours: Annotated[float, Field(gt=0, le=336)] = Field(24.0, description="How long to wait for that person, at most 336 hours; no answer is a no.")
    again: bool = Field(False, description="Promote a version although it was rolled back before.")
