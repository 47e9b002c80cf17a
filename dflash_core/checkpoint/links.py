"""A second place for files that are replaced and never written into: hard links, or copies where there can be none."""

import os
import shutil


def link_or_copy(source: str, target: str) -> None:
    """For `shutil.copytree`: a file system may have no hard links, and none reach into another one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
