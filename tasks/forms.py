"""What a person fills in to start a run from Prefect's page: typed fields with descriptions and bounds.

Prefect makes a form of these types and refuses what they don't allow before anything is scheduled. A union or a mapping
would be a text field for JSON, so the settings that people change have fields of their own; `overrides` takes any other.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.registry import MODEL_NAME
from tasks.workspace import NAME

Profile = Annotated[
    str, Field(min_length=1, max_length=200, description='"demo", "smoke", another name in profiles/, or the path of a YAML file on the node.')
]
DIRECTORY_NAME = rf"^{NAME.pattern}$"
WorkspaceName = Annotated[str, Field(pattern=DIRECTORY_NAME, description="Name of a directory below workspaces/.")]
MadeWorkspace = Annotated[str, Field(pattern=DIRECTORY_NAME, description="Name of a directory below workspaces/; without one, a profile's last.")]
OneCheckpoint = Annotated[str, Field(pattern=r"^(\d+|step-\d{8,})$", description="A name such as step-00000350, or a step.")]
ModelName = Annotated[str, Field(pattern=MODEL_NAME, description="Of a registered model.")]
ResultName = Annotated[str, Field(pattern=DIRECTORY_NAME, description="Of a directory below evaluations/.")]
Minutes = Annotated[float, Field(gt=0, le=14 * 24 * 60, description="Stop, with the state saved, after so many minutes.")]


class TrainingChanges(BaseModel):
    """Changes to the profile; what is left empty stays as the profile has it."""

    model_config = ConfigDict(extra="forbid")

    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(None, description="Data order, anchors and random initialisation follow from it.")
    epochs: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Passes over the training split, 1 to 1000.")
    max_steps: Annotated[int, Field(ge=1)] | None = Field(None, description="Most optimizer steps, at least 1; the schedule is planned for them.")
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="Peak learning rate, above 0, at most 1.")
    num_anchors: Annotated[int, Field(ge=1)] | None = Field(None, description="Most anchors drawn in one sequence, at least 1.")
    num_layers: Annotated[int, Field(ge=1, le=100)] | None = Field(None, description="Drafter layers, 1 to 100.")
    block_size: Annotated[int, Field(ge=2, le=256)] | None = Field(None, description="Tokens of a block, the anchor included; 2 to 256.")
    init_from: Annotated[str, Field(min_length=1)] | None = Field(None, description="Drafter to start from: MODEL@champion, or a directory in z-lab's layout.")
    nproc: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="Processes on the node, one for each GPU; 1 to 1024.")

    def as_overrides(self) -> dict[str, Any]:
        """The changes by dotted key of params.yaml."""
        return {_KEYS[name]: value for name, value in self.model_dump(exclude_none=True).items()}


_KEYS = {
    "seed": "training.seed",
    "epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "learning_rate": "training.learning_rate",
    "num_anchors": "training.num_anchors",
    "num_layers": "drafter.num_layers",
    "block_size": "drafter.block_size",
    "init_from": "drafter.init_from",
    "nproc": "distributed.nproc",
}

NO_CHANGES = TrainingChanges()
