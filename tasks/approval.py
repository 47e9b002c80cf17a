"""Waits for a person to approve a promotion, by a form in Prefect's UI."""

from math import ceil

from prefect import pause_flow_run
from prefect.exceptions import FlowPauseTimeout
from prefect.input import RunInput
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from pydantic import Field

from tasks import mlflow_store, promotion
from tasks.promotion import Judgement
from tasks.promotion_events import tell_of_refusal
from tasks.promotion_settings import PromotionSettings
from tasks.registry import Registry

POLL_SECONDS = 5
MAX_RETRIES = 9  # 2, 4, 8 … s after each other: a server may be away for 17 minutes while a person is waited for


class Approval(RunInput):
    """The form."""

    approve: bool = Field(False, description="Make it the champion.")
    reason: str = Field("", description="Why, or why not; it stands beside the version in the registry.")


def ask_a_person(registry: Registry, judgement: Judgement, settings: PromotionSettings) -> None:
    """Pause the flow until the form is sent.

    Raises:
        GateError: the answer is no, or there is none in time.
    """
    form = Approval.with_initial_data(description=f"# Promote {judgement.version.name}?\n\n{judgement.table()}")
    try:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: MAX_RETRIES}):
            answer = pause_flow_run(wait_for_input=form, timeout=ceil(settings.approval_hours * 3600), poll_interval=POLL_SECONDS)
    except FlowPauseTimeout:
        answer = Approval(approve=False, reason=f"nobody answered within {settings.approval_hours:g} hours")
    with mlflow_store.reached(registry.uri):
        registry.tag(judgement.version.number, {promotion.APPROVAL_TAG: f"{'yes' if answer.approve else 'no'}: {answer.reason}"})
        if not answer.approve:
            reason = answer.reason or "no reason given"
            tell_of_refusal(judgement.version, reason)
            promotion.refuse(registry, judgement, reason)
