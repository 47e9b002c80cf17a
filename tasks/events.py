"""Events that others can act on, in Prefect's event feed: a checkpoint was proven or rejected, a drafter promoted.

A name is `NOUN.PARTICIPLE`; the payload holds what an automation needs to start a deployment (services/automations.py).
"""

import logging
from typing import Any

from prefect.events import emit_event

CHECKPOINT_PROVEN = "checkpoint.proven"
CHECKPOINT_REJECTED = "checkpoint.rejected"
CHECKPOINT_UNPROVEN = "checkpoint.unproven"
DRAFTER_PROMOTED = "drafter.promoted"
DRAFTER_ROLLED_BACK = "drafter.rolled_back"
DRAFTER_REFUSED = "drafter.refused"
DATA_REFUSED = "data.refused"


def tell(event: str, resource: str, **payload: Any) -> None:
    """Emit an event about `dflash.RESOURCE`; that it can't be told is no fault of the run."""
    try:
        emit_event(event, resource={"prefect.resource.id": f"dflash.{resource}", "prefect.resource.name": resource}, payload=payload)
    except Exception as error:  # noqa: BLE001 - telling is never a condition for the work, whatever the fault
        logging.getLogger(__name__).warning("%s was not told (%s: %s); the run goes on", event, type(error).__name__, error)
