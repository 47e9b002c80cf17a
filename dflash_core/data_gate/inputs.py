"""Opens what the gate looks at, and refuses inputs that don't belong together."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from dflash_core.config import Config
from dflash_core.data.conversations import SPLITS, Conversation
from dflash_core.data.dataset import Dataset, DatasetManifest
from dflash_core.data.identity import file_digest
from dflash_core.data.plan import BatchPlan
from dflash_core.data.plan_manifest import PlanManifest, describe_plan, open_plan, read_plan_manifest
from dflash_core.data_gate.profile import Profile, read_profile
from dflash_core.data_gate.round_trip import sampled_rows
from dflash_core.data_gate.rows import Row, read_rows
from dflash_core.errors import ConfigError, DataError, IdentityError


@dataclass(frozen=True)
class PlanInputs:
    """The plan, and the manifest that says the same of it."""

    plan: BatchPlan
    manifest: PlanManifest

    @property
    def buckets(self) -> list[int]:
        """Lengths that rows are padded to."""
        return [int(length) for length in self.manifest.histogram]


class Inputs:
    """The outputs of prepare and bucket, the conversation files and the reference; each is read once, when it is first asked for."""

    def __init__(self, config: Config, prepared: Path, plan: Path) -> None:
        self.config = config
        self._prepared, self._plan = prepared, plan

    @cached_property
    def datasets(self) -> tuple[Dataset, ...]:
        """Both splits. Raises DataError or IdentityError where they are damaged, or of other files than there are now."""
        datasets = tuple(Dataset.open(self._prepared, split) for split in SPLITS)
        _check_sources(datasets[0].manifest, [Path(path) for path in self.config.data.conversations])
        return datasets

    @cached_property
    def splits(self) -> dict[str, str]:
        """The split of each prepared row, by id."""
        return {dataset.sample_id(row): dataset.split for dataset in self.datasets for row in range(len(dataset))}

    @cached_property
    def sampled(self) -> dict[str, tuple[Dataset, int]]:
        """The rows to decode."""
        return sampled_rows(self.datasets, self.config.data_gate.num_round_trips)

    @cached_property
    def rows(self) -> list[Row]:
        """All rows of the conversation files; those that are decoded keep their conversation."""
        try:
            keep = self.sampled
        except (DataError, IdentityError):  # said where the tokens are looked at; the conversations can be judged all the same
            keep = {}
        return list(read_rows([Path(path) for path in self.config.data.conversations], keep))

    @cached_property
    def conversations(self) -> dict[str, Conversation]:
        """Of the rows to decode, by id; of two with the same id the first, as prepare takes it."""
        kept: dict[str, Conversation] = {}
        for row in self.rows:
            if row.conversation is not None:
                kept.setdefault(row.row_id, row.conversation)
        return kept

    @cached_property
    def reference(self) -> Profile | None:
        """The profile of the last promoted version, where one is named."""
        path = self.config.data_gate.reference
        return None if path is None else read_profile(Path(path))

    @cached_property
    def plan(self) -> PlanInputs:
        """The plan of the training split. Raises DataError or IdentityError where its manifest is of something else."""
        training = self.datasets[0]
        plan, written = open_plan(self.config, training, self._plan), read_plan_manifest(self._plan)
        expected = asdict(describe_plan(self.config, training, plan))
        for name, value in asdict(written).items():
            if value != expected[name]:
                raise IdentityError(f"The plan in {self._plan} has {name} {value}, expected {expected[name]}. Run stage bucket again.")
        return PlanInputs(plan, written)

    @cached_property
    def num_token_ids(self) -> int:
        """Rows of the target's embedding."""
        path = Path(self.config.target.path) / "config.json"
        tree = json.loads(path.read_text(encoding="utf-8"))
        size = tree.get("text_config", tree).get("vocab_size")
        if not isinstance(size, int):
            raise ConfigError(f"{path} has vocab_size {size}, expected the number of token ids. Correct target.path.")
        return size


def _check_sources(manifest: DatasetManifest, paths: list[Path]) -> None:
    prepared = [source.sha256 for source in manifest.sources]
    if len(prepared) != len(paths):
        raise IdentityError(f"{len(prepared)} conversation files were prepared, data.conversations names {len(paths)}. Run stage prepare again.")
    for path, before in zip(paths, prepared, strict=True):
        now = file_digest(path)
        if now != before:
            raise IdentityError(f"{path} has sha256 {now[:12]}, and {before[:12]} was prepared. Run stage prepare again.")
