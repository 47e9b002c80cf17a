"""The classes of fault that a proof can point to."""

from typing import Literal

Fault = Literal[
    "file",
    "identity",
    "weights",
    "masters",
    "moments",
    "step_counter",
    "schedule",
    "data_order",
    "repeated_batches",
    "skipped_batches",
    "rng",
    "accumulation",
    "mode",
    "logging",
]

MEANING: dict[str, str] = {
    "file": "the files are damaged, or not those that the log names",
    "identity": "the checkpoint belongs to another run, target, data or configuration",
    "weights": "the drafter's weights are not those that the run had",
    "masters": "the update was made on other master weights than the forward pass used",
    "moments": "the optimizer's moments are not those that the run had",
    "step_counter": "the optimizer's step counters are wrong",
    "schedule": "the learning rate is not the plan's",
    "data_order": "other samples than the plan's, or in another order",
    "repeated_batches": "samples are trained on again",
    "skipped_batches": "samples are left out",
    "rng": "feature noise or anchors were drawn otherwise",
    "accumulation": "a part of the step's gradient is missing or counted twice",
    "mode": "a training mode was left off",
    "logging": "training was right and its log is wrong",
}
