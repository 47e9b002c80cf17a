"""The frozen target LLM: its features, its checks, its own answers."""
