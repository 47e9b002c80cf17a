"""The tasks of a promotion, each one call, with what the gates said as an artifact in the UI."""

from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from dflash_core.errors import GateError
from tasks import alias_moves, mlflow_store, promotion
from tasks.champion import measure_in_workspace
from tasks.promotion import Judgement
from tasks.promotion_events import tell_of_move, tell_of_refusal
from tasks.promotion_settings import PromotionSettings
from tasks.registry import Registry
from tasks.workspace import Workspace

KEY = "promotion-gates"


@task(cache_policy=NO_CACHE, task_run_name="gates")
def judge(workspace: Workspace, registry: Registry, settings: PromotionSettings) -> Judgement:
    """Register the candidate and measure every gate."""
    with mlflow_store.reached(registry.uri):
        judgement = promotion.judge(workspace, registry, settings, measure_in_workspace(get_run_logger()))
    tell_of_move(registry.model, judgement.ended)
    create_markdown_artifact(judgement.table(), key=KEY, description="What the gates of the promotion said")
    return judgement


@task(cache_policy=NO_CACHE, task_run_name="promote")
def conclude(registry: Registry, judgement: Judgement) -> dict[str, Any]:
    """Move the aliases, or end as a gate's no."""
    try:
        with mlflow_store.reached(registry.uri):
            move = promotion.conclude(registry, judgement)
    except GateError as error:
        tell_of_refusal(judgement.version, str(error))
        raise
    tell_of_move(registry.model, move)
    return {"model": registry.model, "champion": judgement.version.number, "promoted": move is not None}


@task(cache_policy=NO_CACHE, task_run_name="roll back")
def roll_back(model: str) -> dict[str, Any]:
    """Move the aliases back."""
    uri = mlflow_store.default_uri()
    with mlflow_store.reached(uri):
        move = alias_moves.roll_back(Registry(uri, model))
    tell_of_move(model, move)
    return {"model": model, "champion": move["to"], "rolled_back": move["from"]}
