"""Says what a column's name means, whichever trainer wrote it."""

import re
from functools import lru_cache

# Better names first: of two columns with one role the earlier wins, if it has enough values.
ROLES: dict[str, tuple[str, ...]] = {
    "step": (
        *("global_step", "train_step", "optimizer_step", "current_step", "_step", "iteration", "iterations", "iter", "iters"),
        *("step", "steps", "num_updates", "update", "updates", "it", "train_iter", "kimg"),
    ),
    "loss": (
        *("loss", "train_loss", "training_loss", "lm_loss", "loss_train", "total_loss", "mean_loss", "avg_loss", "batch_loss"),
        *("ce_loss", "cross_entropy", "nll_loss", "nll"),
    ),
    "eval_loss": ("eval_loss", "val_loss", "validation_loss", "valid_loss", "test_loss", "dev_loss", "eval_nll", "vloss"),
    "lr": ("lr", "learning_rate", "train_lr", "current_lr", "learning_rates", "lr_0", "lr-adamw", "lr_group_0"),
    "grad_norm": ("grad_norm", "gradient_norm", "gnorm", "global_grad_norm", "total_grad_norm", "norm", "grad_norm_total", "gradnorm"),
    "accuracy": (
        *("acc", "accuracy", "train_acc", "train_accuracy", "mean_token_accuracy", "token_accuracy", "per_position_accuracy"),
        *("streak", "accept_len", "acceptance_length", "acc_len", "simulated_acc_len", "tau", "acceptance_rate", "acc_0"),
    ),
    "throughput": (
        *("tok_per_s", "tokens_per_second", "tokens_per_sec", "tok_per_sec", "tokens_sec", "tok_s", "tokens_s", "tps", "throughput"),
        *("tokens_per_s", "samples_per_second", "samples_per_sec", "train_samples_per_second", "it_per_s"),
    ),
    "step_time": ("step_time", "iter_time", "time_per_step", "elapsed_time_per_iteration_(ms)", "step_ms", "dt", "step_seconds", "time"),
    "tokens": ("tokens_seen", "total_tokens", "consumed_tokens", "num_tokens", "ntokens_seen", "total_tokens_processed", "tokens"),
    "epoch": ("epoch", "epochs"),
    "loss_scale": ("loss_scale", "scale", "grad_scale", "amp_scale"),
    "wall_time": ("wall_time", "_timestamp", "timestamp", "train_time", "_runtime"),
}
RANKS = {name: (role, rank) for role, names in ROLES.items() for rank, name in enumerate(names)}
HELD_OUT = {"eval", "val", "valid", "validation", "test", "dev", "heldout"}
TRAINED = {"train", "training", "trainer", "metrics", "log", "optim", "perf"}


@lru_cache(maxsize=4096)
def role_of(name: str) -> tuple[str, int] | None:
    """The role of a column and the rank of its name in it; None if it has none that is known.

    Understands train/loss, loss/train, metrics.loss, "lm loss", and "run - train/loss" of a table export.
    """
    key = name.lower().split(" - ")[-1].strip().replace(" ", "_").replace("/sec", "_sec")
    key = key.removesuffix("/s") + "_s" if key.endswith("/s") else key
    if key.endswith(("__min", "__max", "__step")):
        return None
    parts = [p for p in re.split(r"[/.:|]", key) if p]
    held_out = any(p in HELD_OUT for p in parts)
    parts = [p for p in parts if p not in HELD_OUT and p not in TRAINED] or parts[-1:]
    if not parts:
        return None
    base = parts[-1]
    if "queue" in base and ("depth" in base or "size" in base or "len" in base):
        return "queue", 0
    role, rank = RANKS.get(base) or _prefixed(base)
    if role == "":
        return None
    if held_out or role == "eval_loss":
        return ("eval_loss", rank) if role in ("loss", "eval_loss") else (f"eval_{role}", rank) if role == "accuracy" else None
    return role, rank


def _prefixed(base: str) -> tuple[str, int]:
    """train_lm_loss, eval_accuracy: the role of what follows a prefix; ("", 0) if none."""
    head, _, rest = base.partition("_")
    if rest in RANKS and head in HELD_OUT:
        role, rank = RANKS[rest]
        return ("eval_loss", rank) if role == "loss" else (f"eval_{role}", rank) if role == "accuracy" else ("", 0)
    return RANKS[rest] if head == "train" and rest in RANKS else ("", 0)
