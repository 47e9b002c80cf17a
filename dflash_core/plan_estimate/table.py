"""Prints a plan: the resolved configuration, and tables of memory, disk and time with the origin of each figure."""

import sys
from collections.abc import Sequence

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash_core.config import Config
from dflash_core.plan_estimate.disk import disk_items, disk_peak
from dflash_core.plan_estimate.duration import assumed_seconds, step_seconds
from dflash_core.plan_estimate.items import WORDS, Item, peak
from dflash_core.plan_estimate.memory import Place, memory_items
from dflash_core.plan_estimate.probe import Rates, measure_rates
from dflash_core.plan_estimate.sizes import width_of
from dflash_core.plan_estimate.sizing import Sizing, sizings_of
from dflash_core.plan_estimate.verdict import disk_here, gpu_here, gpu_verdict, here_verdict, memory_here

HEADINGS: dict[Place, str] = {"cpu": "on a CPU", "cuda": "on a GPU", "host": "beside a GPU"}
PLAIN_COLUMNS = 120  # where the output is no terminal
# Multiply-adds a second that a GPU is assumed to reach, where none is here to measure: 100 and 400 TFLOP/s.
ASSUMED_RATES = (50e12, 200e12)


def print_plan(config: Config, num_ranks: int | None = None) -> None:
    """Print configuration and estimates.

    Args:
        config: the run.
        num_ranks: processes that will be started; None: distributed.nproc, else as few as the placement works with.

    Raises:
        ConfigError: the target's directory holds no usable config.json, or the placement leaves a side without a rank.
    """
    sizings = sizings_of(config, num_ranks)
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_COLUMNS)
    console.print("[bold]Configuration, every key[/bold]")
    console.print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, default_flow_style=None), highlight=False, markup=False, soft_wrap=True)
    console.print(_run_table(sizings))
    for sizing in sizings:
        print_memory(sizing, console)
    print_disk(sizings[0], console)
    print_time(sizings, measure_rates(config, sizings[0].spec, sizings[0].workload), console)
    console.print("Nothing was started.")


def print_memory(sizing: Sizing, console: Console) -> None:
    """One role's memory, and whether it fits. On a machine without a GPU both ways are shown."""
    places: tuple[Place, ...] = ("cuda", "host") if gpu_here() else ("cpu", "cuda", "host")
    columns = {place: memory_items(sizing, place) for place in places}
    console.print(memory_table(sizing, columns))
    for place, items in columns.items():
        phase, total = peak(items)
        console.print(f"{sizing.role.name} {HEADINGS[place]}: {_gigabytes(total)} at most, while {WORDS[phase]}; {_memory_verdict(place, total, sizing.role.count)}.", highlight=False)


def memory_table(sizing: Sizing, columns: dict[Place, tuple[Item, ...]]) -> Table:
    """Items by name; those that are not held when a column is at its peak stand in brackets."""
    title = f"Memory of {'each' if sizing.role.count > 1 else 'the'} {sizing.role.name} ({sizing.role.count}), GB; in brackets: not held at the peak"
    table = Table("item", *(HEADINGS[place] for place in columns), "from", title=title, title_justify="left")
    names = list(dict.fromkeys(item.name for items in columns.values() for item in items))
    peaks = {place: peak(items)[0] for place, items in columns.items()}
    for name in names:
        found = {place: item for place, items in columns.items() for item in items if item.name == name}
        cells = [_cell(found.get(place), peaks[place]) for place in columns]
        told = max(found.values(), key=lambda item: item.bytes)
        table.add_row(*map(escape, [name, *cells, told.formula]))
    table.add_section()
    table.add_row("at most", *(f"{peak(items)[1] / 1e9:,.2f}" for items in columns.values()), "")
    return table


def print_disk(sizing: Sizing, console: Console) -> None:
    """What is written, and whether there is room."""
    items = disk_items(sizing)
    moment, total = disk_peak(items)
    table = Table("item", "path", "GB", "from", title="Disk; in brackets: not there when most is", title_justify="left")
    for item in items:
        size = f"{item.bytes / 1e9:,.2f}"
        table.add_row(*map(escape, [item.name, item.path, size if moment in item.moments else f"({size})", item.formula]))
    table.add_section()
    table.add_row("at most", "", f"{total / 1e9:,.2f}", "")
    console.print(table)
    when = "while the run trains" if moment == "training" else "once the run has ended"
    unknown = not sizing.online and sizing.workload.train_tokens is None
    but = " without the cached features, whose size is known after prepare" if unknown else ""
    console.print(f"Disk: {_gigabytes(total)} at most, {when}; {here_verdict(total, disk_here(), 'free disk')}{but}.", highlight=False)


def print_time(sizings: Sequence[Sizing], rates: Rates, console: Console) -> None:
    """A range from the probe's repeats; where there is no GPU, also what GPUs would need at assumed rates."""
    steps = sizings[0].workload.steps
    device = "GPU" if gpu_here() else "CPU"
    console.print(f"Time on this machine's {device}, by a measured drafter layer: {_range(step_seconds(sizings, rates), steps)}.", highlight=False)
    if not gpu_here():
        seconds = (assumed_seconds(sizings, ASSUMED_RATES[1]), assumed_seconds(sizings, ASSUMED_RATES[0]))
        reached = " to ".join(f"{2 * rate / 1e12:.0f}" for rate in ASSUMED_RATES)
        console.print(f"Time on GPUs, if each reaches {reached} TFLOP/s (assumed): {_range(seconds, steps)}.", highlight=False)
    console.print("Checkpoints, evaluations and start-up come on top.")


def _run_table(sizings: Sequence[Sizing]) -> Table:
    sizing = sizings[0]
    spec, workload = sizing.spec, sizing.workload
    ranks = ", ".join(f"{s.role.count} {s.role.name}{'s' if s.role.count > 1 else ''}" for s in sizings)
    known = "build/prepared, build/plan" if workload.steps else "the settings; run prepare and bucket for more"
    table = Table("the run", "", "from", title_justify="left")
    table.add_row("drafter", f"{sizing.drafter.total / 1e6:,.1f} M parameters", f"{spec.num_layers} layers, width {spec.hidden_size}, block {spec.block_size}")
    table.add_row("target", f"{sizing.target.total / 1e6:,.0f} M parameters", f"{sizing.target.used / 1e6:,.0f} M up to the last captured layer")
    table.add_row("captured layers", escape(str(list(spec.target_layer_ids))), f"of the target's {spec.num_target_layers}")
    table.add_row("ranks", ranks, f"placement {sizing.config.distributed.placement}, {sizing.config.distributed.parallel}")
    most = sizing.config.training.max_steps
    unplanned = f"at most {most:,}" if most else "not known yet"
    table.add_row("optimizer steps", f"{workload.steps:,}" if workload.steps else unplanned, known)
    weights = width_of(sizing.config.evaluation.dtype) * (sizing.target.total + sizing.drafter.total)
    table.add_row("stage evaluate", _gigabytes(weights), f"target and drafter in {sizing.config.evaluation.dtype}, in a process of its own")
    table.add_row("a step", f"{workload.step_tokens:,.0f} tokens, {workload.step_anchors:,.0f} anchors", "with padding, of all ranks")
    return table


def _cell(item: Item | None, peak_phase: str) -> str:
    if item is None:
        return ""
    text = f"{item.bytes / 1e9:,.2f}"
    return text if peak_phase in item.phases else f"({text})"


def _memory_verdict(place: Place, total: float, count: int) -> str:
    """A rank has a GPU to itself, and shares the machine's memory with the others on its node."""
    if place == "cuda":
        here = gpu_here()
        return here_verdict(total, here, "GPU") if here else gpu_verdict(total)
    together = f"{_gigabytes(total * count)} if all {count} share a node, which " if count > 1 else ""
    return together + here_verdict(total * count, memory_here(), "memory")


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"


def _range(seconds: tuple[float, float], steps: int | None) -> str:
    """Of a step, and of the run where its steps are known."""
    low, high = seconds
    a_step = f"{_span(low, high)} s a step"
    if steps is None:
        return f"{a_step}; how many steps is known after bucket"
    unit, size = ("h", 3600) if low * steps > 7200 else ("min", 60)
    return f"{a_step}, {_span(low * steps / size, high * steps / size)} {unit} for {steps:,}"


def _span(low: float, high: float) -> str:
    return f"{low:.2g} to {high:.2g}" if high < 10 else f"{low:,.0f} to {high:,.0f}"
