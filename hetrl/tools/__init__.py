"""The command line: one file per command, and the only place where the rooms are wired together.

`main` is the table of commands, `cli` what they share.
"""
