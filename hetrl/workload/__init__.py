"""Amounts of work, no seconds: operators and FLOPs, bytes of memory, bytes of messages."""
