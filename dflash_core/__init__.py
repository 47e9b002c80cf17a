"""dflash_core: trains, measures and exports DFlash drafters; plain Python and torch, no orchestrator.

Reading path, from a file to the loss, in about ten minutes:

    params.yaml                        every setting of a run
    dflash_core/config.py              what each setting means, and what contradicts what
    flows/train_drafter.py             the chain of stages
    tasks/training.py                  how a stage's command is run and followed
    dflash_core/stages/train.py        opens the inputs, begins or continues a run
    dflash_core/training/loop.py       the loop: batch, step, record, checkpoint
    dflash_core/training/batches.py    the plan becomes step batches
    dflash_core/data/loader.py         samples become a batch with anchors
    dflash_core/target/model.py        hidden states of the frozen target
    dflash_core/training/step.py       one optimizer step with one denominator
    dflash_core/drafter/model.py       the drafter
    dflash_core/drafter/objectives.py  the loss
"""
