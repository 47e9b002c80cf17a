"""The world in memory as a proof sees a run: what the tests of proofs replay in milliseconds."""

from typing import Any

from memory_world import make_world

from dflash_core.proof.replay import Setting

STEPS, EVERY, AT = 20, 2, 14
CONDITIONS = {"device": "cpu", "threads": 1, "torch": "as here"}


def make_setting(**training: Any) -> Setting:
    """The same setting for the same arguments, with feature noise that is still warming up at the run's end."""
    settings = {"epochs": 8, "feature_noise": {"std": 0.1, "warmup_steps": 20}, "learning_rate": 5e-3} | training
    world = make_world(training=settings, multiple=32)  # one bucket: two micro-batches a step
    initial = {name: tensor.clone() for name, tensor in world.trainee.drafter.state_dict().items()}
    identity = {"dataset": "memory", "training": world.config.training.model_dump(mode="json")}
    return Setting(world.config, world.plan, world.dataset, world.source, world.trainee, initial, identity, CONDITIONS)
