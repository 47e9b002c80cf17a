"""The report of a run: gathered facts, figures, one self-contained HTML page, and the same facts as JSON."""
