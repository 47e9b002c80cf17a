"""Tables what was looked for: found, ruled out, or not to be told from this log; non-finite numbers first."""

from dataclasses import dataclass

import numpy as np

from dflash_core.diagnosis.evidence import Cause, Evidence
from dflash_core.diagnosis.finding import Finding


@dataclass(frozen=True)
class Ruled:
    """One thing that was looked for: out, found, or not to be told from this log."""

    what: str
    state: str
    why: str


def ruled(e: Evidence, causes: tuple[Cause, ...]) -> tuple[Ruled, ...]:
    """The table of what was looked for, non-finite numbers first."""
    log, view = e.view.log, e.view
    bad = int((~np.isfinite(log.loss)).sum())
    rows = [
        Ruled("non-finite loss (NaN, infinity)", "found" if e.of("nonfinite") else "ruled out", f"{bad:,} of {len(log):,} losses, none of them zero or frozen in its place" if not e.of("nonfinite") else f"{bad:,} of {len(log):,} losses")
    ]
    rows.append(_looked("divergence", [*e.of("divergence", "slow_climb"), *e.diverged, *e.lost_at_save], "the level at the end is near its lowest"))
    rows.append(_weights(e, causes))
    rows.append(_column(e, "learning rate", "lr", "lr_break", "it follows one schedule without a jump"))
    rows.append(_column(e, "gradient norm", "grad_norm", "grad_spike", "no line is three times those before"))
    for kind, name in (("checkpoint", "checkpoints"), ("epoch", "epoch boundary"), ("eval", "evaluation")):
        rows.append(_event(e, kind, name))
    rows.append(_looked("a second writer", e.of("two_writers"), "steps only grow, or fall where a session begins again"))
    rows.append(_looked("periodic pattern", e.of("periodic", "epoch_stairs"), "no lag of the residual repeats"))
    if not log.held_out:
        rows.append(Ruled("overfitting", "can't be told", "no held-out result is logged"))
    else:
        rows.append(_looked("overfitting", e.of("train_eval_split"), "the held-out loss is at its best at the end, within noise"))
    return tuple(r for r in rows if len(view.loss_M) or r.what.startswith("non-finite"))


def _looked(what: str, seen: list[Finding], why: str) -> Ruled:
    return Ruled(what, "found" if seen else "ruled out", seen[0].text if seen else why)


def _weights(e: Evidence, causes: tuple[Cause, ...]) -> Ruled:
    named = [c.evidence[0] for c in causes if c.cause == "weights"]
    if named or not e.risen:
        swings = [f for f in e.of("loss_spike") if f.detail["trajectory"] == "oscillating"]
        why = "between peaks the loss is back at its old level" if swings else "the loss never stays at the level it began with"
        return Ruled("lost weights", "found" if named else "ruled out", named[0] if named else why)
    return Ruled("lost weights", "can't be told", "the loss rises at once and stays, as it would with all or some of them lost")


def _column(e: Evidence, what: str, role: str, kind: str, why: str) -> Ruled:
    if role not in e.view.log.aligned:
        return Ruled(what, "can't be told", "it is not in the log")
    return _looked(what, e.of(kind), why)


def _event(e: Evidence, kind: str, name: str) -> Ruled:
    if not len(e.view.events.of(kind)):
        return Ruled(f"spikes at {name}", "can't be told", "no step of one is known")
    at = e.refined.spikes_at.get(kind)
    if at is None:
        return Ruled(f"spikes at {name}", "ruled out", "there are no spikes")
    return Ruled(f"spikes at {name}", "found" if at.holds else "ruled out", at.told())
