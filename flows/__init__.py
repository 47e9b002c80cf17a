"""The flows; each reads as a table of contents."""

import tasks.environment  # noqa: F401
