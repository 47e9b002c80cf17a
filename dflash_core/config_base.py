"""What every section of the configuration is made from."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """Base of every section: immutable; a misspelt key is an error, and so is .inf, which state.json couldn't hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def _refuse_idle(self, key: str, where: str) -> None:
        """A setting that changes nothing is more likely a mistake than a wish; every key may be written out at its default."""
        default = type(self).model_fields[key].default
        if getattr(self, key) != default:
            raise ValueError(f"{key} {getattr(self, key)} has no effect {where}; set it to {'null' if default is None else default}")
