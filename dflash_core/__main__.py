"""Runs a stage as `python -m dflash_core STAGE`, the same as the dflash-core command."""

from dflash_core.cli import entry

if __name__ == "__main__":
    entry()
