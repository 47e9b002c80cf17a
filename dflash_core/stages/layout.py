"""Where each stage's output lies, relative to the working directory; dvc.yaml names the same paths."""

from pathlib import Path

PREPARED = Path("build/prepared")
PLAN = Path("build/plan")
DATA_GATE = Path("build/data_gate")
FEATURES = Path("build/features")
DRAFTER = Path("build/drafter")
CHECKPOINT = Path("build/checkpoint")  # what the drafter was exported from, by its name
TRAIN_POINTER = Path("build/train.json")
PROOF = Path("build/proof.json")
EVALUATION = Path("build/evaluation")
REPORT = Path("build/report")
