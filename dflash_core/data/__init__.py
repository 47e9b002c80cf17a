"""Conversations to batches: reading, tokenizing, splits, buckets, the batch plan, anchors."""
