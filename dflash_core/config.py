"""The configuration: one frozen, typed tree read from one params.yaml; unknown keys are an error.

Each section is the DVC parameter group of the stages that read it. Numbers that follow from others
are properties, and every check that spans two fields stands here, so that a wrong configuration is
refused before anything is loaded.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from dflash_core.config_base import Fraction, PositiveInt, Section
from dflash_core.config_data import BucketConfig, DataConfig, DataGateConfig
from dflash_core.errors import ConfigError


class TargetConfig(Section):
    """The frozen target LLM."""

    path: str = Field(description="Directory of the target in transformers' format.")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="Dtype of the target while features are taken.")
    trust_remote_code: bool = Field(False, description="Run code that ships with the target. Off unless you trust it.")


class DrafterConfig(Section):
    """The drafter's shape; what is not set follows from the target."""

    num_layers: PositiveInt = Field(5, description="Drafter layers.")
    block_size: Annotated[int, Field(ge=2)] = Field(16, description="Tokens of a block, the anchor included.")
    num_features: PositiveInt = Field(5, description="Target layers whose output is captured, where no ids are given.")
    target_layer_ids: tuple[int, ...] | None = Field(
        None, min_length=1, description="0-based target layers; null: by the z-lab rule."
    )
    mask_token_id: int | None = Field(None, description="Row of the target's embedding; null: a spare row is looked for.")
    sliding_window: PositiveInt | None = Field(None, description="Window of the sliding layers, in tokens.")
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] | None = Field(
        None, description="One entry a layer; null: all full."
    )
    init: Literal["target", "random"] = Field("target", description="Start layers from the target's own, or at random.")
    init_from: str | None = Field(
        None, description="Directory of a released drafter in z-lab's layout to start from; its layer ids and mask row fill those left null."
    )
    attention: Literal["fast", "reference"] = Field("fast", description="Grouped attention, or the masked reference.")

    @model_validator(mode="after")
    def _layers_agree(self) -> "DrafterConfig":
        if self.layer_types is not None and len(self.layer_types) != self.num_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for num_layers {self.num_layers}")
        sliding = self.layer_types is not None and "sliding_attention" in self.layer_types
        if sliding != (self.sliding_window is not None):
            raise ValueError(
                f"sliding_window {self.sliding_window} and layer_types {self.layer_types} disagree; set both or neither"
            )
        if self.init_from is not None:
            self._refuse_idle("init", "where init_from is set")
        return self


class ObjectiveConfig(Section):
    """The training objective."""

    kind: Literal["decayed_ce", "dpace"] = Field("decayed_ce", description="Decayed cross-entropy, or D-PACE.")
    gamma: Annotated[float, Field(gt=0)] | None = Field(None, description="Decay length in slots; null: 7, 5, 4 for B 16, 10, 8.")
    alpha: Fraction = Field(0.5, description="D-PACE smoothing.")

    @model_validator(mode="after")
    def _settings_are_of_the_kind(self) -> "ObjectiveConfig":
        self._refuse_idle("gamma" if self.kind == "dpace" else "alpha", f"under kind {self.kind}")
        return self


class FeatureNoiseConfig(Section):
    """Uniform noise on target features during training; off by default."""

    std: Annotated[float, Field(ge=0.0)] = Field(0.0, description="h + 2(u - 0.5) * std at the plateau.")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(0, description="Optimizer steps until the plateau.")

    @model_validator(mode="after")
    def _warmup_needs_noise(self) -> "FeatureNoiseConfig":
        if self.std == 0.0:
            self._refuse_idle("warmup_steps", "where std is 0")
        return self


class TrainingConfig(Section):
    """Optimizer, schedule, precision and length of the run."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Seed of data order, anchors, noise and random initialisation.")
    epochs: PositiveInt = Field(6, description="Passes over the training split.")
    max_steps: PositiveInt | None = Field(None, description="Stop (and plan the schedule) after this many optimizer steps.")
    num_anchors: PositiveInt = Field(512, description="Most anchors drawn in one sequence.")
    learning_rate: Annotated[float, Field(gt=0)] = 6e-4
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup_ratio: Fraction = Field(0.04, description="Share of the run for linear warm-up.")
    decay_ratio: Fraction = Field(0.2, description="Share of the run for the decay of the wsd schedule.")
    min_lr_ratio: Fraction = Field(0.0, description="Last learning rate over the peak.")
    precision: Literal["float32", "bfloat16"] = Field("bfloat16", description="Autocast dtype; masters are always float32.")
    deterministic: bool = Field(True, description="Deterministic kernels, so that a resumed run is bit-identical.")
    feature_noise: FeatureNoiseConfig = FeatureNoiseConfig()
    feature_source: Literal["online", "cached"] = Field("online", description="Run the target in the loop, or read `features`.")

    @model_validator(mode="after")
    def _phases_fit(self) -> "TrainingConfig":
        if self.schedule == "wsd" and self.warmup_ratio + self.decay_ratio > 1:
            raise ValueError(f"warmup_ratio {self.warmup_ratio} + decay_ratio {self.decay_ratio} exceed the run; lower one")
        if self.schedule != "wsd":
            self._refuse_idle("decay_ratio", f"under schedule {self.schedule}")
        if self.schedule == "constant":
            self._refuse_idle("min_lr_ratio", "under schedule constant")
        return self


class DistributedConfig(Section):
    """How the ranks of a run share the work. How many there are may change at a resume."""

    nproc: PositiveInt | None = Field(
        None, description="Processes to start on this node; the command line's --nproc wins; null: one process in place."
    )
    placement: Literal["colocated", "split"] = Field(
        "colocated", description="Every rank runs target and drafter, or some ranks run the target only and send its features."
    )
    target_ranks: PositiveInt | None = Field(None, description="Split: ranks that run the target; null: measured at the start.")
    tensor_parallel: PositiveInt = Field(1, description="Split: target ranks that hold one target together.")
    parallel: Literal["ddp", "fsdp2"] = Field("ddp", description="Drafter ranks hold all of the drafter, or a shard each.")
    queue_depth: PositiveInt = Field(2, description="Step batches that may wait in each queue before the drafter.")
    timeout_s: Annotated[float, Field(gt=0)] = Field(600.0, description="Seconds of waiting until the stuck side is named.")

    @model_validator(mode="after")
    def _split_settings_need_split(self) -> "DistributedConfig":
        if self.placement == "colocated" and (self.target_ranks is not None or self.tensor_parallel > 1):
            raise ValueError(
                f"target_ranks {self.target_ranks} and tensor_parallel {self.tensor_parallel} need placement split; set it, or remove them"
            )
        if self.target_ranks is not None and self.target_ranks % self.tensor_parallel:
            raise ValueError(f"target_ranks {self.target_ranks} is no multiple of tensor_parallel {self.tensor_parallel}")
        if self.target_ranks is None and self.tensor_parallel > 1:
            raise ValueError(f"tensor_parallel {self.tensor_parallel} leaves target_ranks open, which is measured for 1 only; set target_ranks")
        return self


class CheckpointConfig(Section):
    """When checkpoints are saved, and which are kept."""

    every: PositiveInt = Field(500, description="Optimizer steps between checkpoints.")
    keep_last: Annotated[int, Field(ge=2)] = Field(3, description="Newest checkpoints kept; never fewer than two.")
    keep_every: PositiveInt | None = Field(None, description="Also keep each checkpoint whose step is a multiple of this.")
    evaluate: bool = Field(True, description="Measure acceptance length on held-out data at every checkpoint.")
    wait: bool = Field(False, description="Stand still until each checkpoint is on disk, instead of writing it beside the training.")
    proof_steps: Annotated[int, Field(ge=0)] = Field(
        3, description="Steps past the end, logged and thrown away: the last checkpoint is proven by replaying them. 0: none."
    )


# Kinds of findings that can be faults while a run goes on.
StopKind = Literal["loss_spike", "level_shift", "divergence", "instability_episode", "accuracy_drop"]


class WatchConfig(Section):
    """What the diagnoser does while a run goes on. A loss or gradient that isn't finite stops the run whatever stands here."""

    enabled: bool = Field(True, description="Look at the losses, norms, accuracies and queues of the last 1,000 steps now and then.")
    stop_on: tuple[StopKind, ...] = Field((), description="Kinds of findings that stop the run, saved, where they are faults.")


class EvaluationConfig(Section):
    """Acceptance length and speed on held-out prompts, or on prompt sets."""

    num_prompts: PositiveInt = Field(32, description="Held-out prompts decoded for real; of prompt sets, rows of each.")
    prompt_sets: tuple[str, ...] = Field((), description="Files of prompts to measure in place of the held-out split; .jsonl, .json, .parquet, .gz.")
    template: Literal["chat", "raw"] = Field("chat", description="Prompt sets: rendered by the target's chat template, or as bare text.")
    block_size: Annotated[int, Field(ge=2)] | None = Field(None, description="Block to decode with, at most the trained one; null: that.")
    batch_size: PositiveInt = Field(1, description="Prompts decoded at once; above 1 the speed is that of the batch, with and without drafter.")
    num_generate_prompts: Annotated[int, Field(ge=0)] = Field(4, description="First prompts that generate() decodes as well, for its speed, at batch_size 1.")
    max_new_tokens: Annotated[int, Field(ge=2)] = Field(128, description="Most tokens a prompt; the first is the prefill's, not counted.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Dtype of target and drafter while decoding.")
    num_walk_prompts: PositiveInt = Field(64, description="Held-out rows of the cheap measure at every checkpoint.")
    bootstrap_samples: Annotated[int, Field(ge=40)] = Field(2000, description="Draws of the 95 % interval; fewer than 40 have no 2.5 %.")
    tie_margin: Annotated[float, Field(gt=0)] = Field(1e-4, description="Two best logits nearer than this are a tie.")
    temperature: Annotated[float, Field(ge=0)] = Field(0.0, description="0: greedy, held to the target's own text; else sampled.")
    rule: Literal["rejection", "match"] = Field(
        "rejection", description="Sampled: drafts pass with min(1, p/q), or while they are what the target draws. Both are lossless."
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Sampled: seed of the draws; each answer has a generator of its own.")

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> "EvaluationConfig":
        # `template` is not among them: prompt sets may be named on the command line.
        if self.temperature == 0.0:
            self._refuse_idle("rule", "at temperature 0")
            self._refuse_idle("seed", "at temperature 0")
        return self


class Config(Section):
    """Everything a run needs. Paths are relative to the working directory."""

    project: str = Field(".", description="Directory that holds the code, for DVC's dependencies.")
    run: str = Field(
        "demo", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the run: runs/NAME holds its log and checkpoints."
    )
    target: TargetConfig
    data: DataConfig
    bucket: BucketConfig = BucketConfig()
    data_gate: DataGateConfig = DataGateConfig()
    drafter: DrafterConfig = DrafterConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    training: TrainingConfig = TrainingConfig()
    distributed: DistributedConfig = DistributedConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    watch: WatchConfig = WatchConfig()

    @model_validator(mode="after")
    def _split_runs_the_target(self) -> "Config":
        if self.distributed.placement == "split" and self.training.feature_source == "cached":
            raise ValueError("placement split has ranks that run the target, feature_source cached needs none; set one of them otherwise")
        return self

    @property
    def run_dir(self) -> Path:
        """Directory of the run's log and checkpoints; not an output of DVC, which deletes those first."""
        return Path("runs") / self.run


def load_config(path: Path) -> Config:
    """Read params.yaml.

    Raises:
        ConfigError: no such file, not YAML, an unknown key, a wrong type, or fields that contradict each other.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; pass --params FILE, or run in a directory that has params.yaml.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read as YAML: {' '.join(str(error).split())}. Correct the file.") from None
    return parse_config(tree, str(path))


def parse_config(tree: object, source: str) -> Config:
    """Validate a parsed tree; `source` names it in errors. Raises ConfigError as `load_config` does."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'top level'}: {_fault(e)} (found {e['input']!r:.80})" for e in error.errors())
        raise ConfigError(f"{source} is not a valid configuration: {faults}. Correct these keys.") from None


def _fault(error: Mapping[str, Any]) -> str:
    """pydantic's message; for an unknown key, the known one that it looks like."""
    if error["type"] != "extra_forbidden":
        return error["msg"]
    section: Any = Config
    for name in error["loc"][:-1]:
        section = section.model_fields[name].annotation if name in getattr(section, "model_fields", {}) else None
    close = difflib.get_close_matches(str(error["loc"][-1]), getattr(section, "model_fields", {}), 1)
    return "unknown key" + (f", did you mean {close[0]}?" if close else "")
