"""What a version's conversations are like in a few numbers, written beside the verdict and the reference of later versions."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_core.data_gate.rows import Row
from dflash_core.errors import DataError


@dataclass(frozen=True)
class Profile:
    """Rows in all, by script and by category."""

    num_rows: int
    scripts: dict[str, int]
    categories: dict[str, int]

    def to_json(self) -> str:
        """Text of profile.json."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def profile_of(rows: Iterable[Row]) -> Profile:
    """The profile of these rows; those that are no conversations count in the sum only."""
    rows = list(rows)
    scripts, categories = (
        Counter(value for row in rows if (value := getattr(row, name)) is not None) for name in ("script", "category")
    )
    return Profile(len(rows), dict(scripts), dict(categories))


def read_profile(path: Path) -> Profile:
    """A profile.json of an earlier version. Raises DataError where it is missing or is none."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        profile = Profile(**tree)
        if not all(isinstance(count, int) for count in (profile.num_rows, *profile.scripts.values(), *profile.categories.values())):
            raise TypeError("a count is no whole number")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no profile of data ({error}), expected profile.json of an earlier data gate. Correct data_gate.reference.") from None
    return profile
