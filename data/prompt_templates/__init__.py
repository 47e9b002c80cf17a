"""The prompt set's templates, fillers and hand-written prompts, one module a category."""
