"""Says what happened to a training run, from its log alone.

Reading path: diagnose.py (the whole way) -> readers/detect.py -> log.py -> timeline.py -> detectors/ -> correlate.py and
refine.py -> causes.py -> verdict.py -> outcome.py, page.py. live.py feeds the same detectors while a run goes on.
"""
