"""The data gate: expectations on conversations, tokens and plan, that must hold before anything is trained on them."""
