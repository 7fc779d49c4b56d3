"""What a search did, in words: every count of plan.json and plan.timings.json, and what it left out, by reason."""

from __future__ import annotations

from collections.abc import Mapping

from hetrl.search.result import SearchResult

COUNTS = {
    "groupings": "groupings of the tasks",
    "moves": "assignments of devices asked for (what --budget limits)",
    "moves_null": "moves without effect",
    "moves_proposed": "moves costed",
    "moves_accepted": "moves accepted",
    "partitions_screened": "groupings of the tasks ruled out by bounds",
    "assignments_costed": "assignments worked out",
    "groups_combined": "groups put together from options of their tasks",
    "groups_costed": "groups with devices worked out",
    "nodes": "nodes of the search tree over groups",
    "task_bounds": "lower bounds of tasks",
    "fronts": "Pareto fronts of tasks",
    "front_options": "options on these fronts",
    "columns": "columns (a group with one way to run it)",
    "column_overflows": "times more columns than are kept (what follows is no proof)",
    "combinations_evaluated": "combinations of columns evaluated",
    "certificate_columns": "columns in the certificate",
    "placements_evaluated": "placements on the real links evaluated",
    "options_bounded": "options (ways to run a task) bounded",
    "options_costed": "options costed exactly",
}
"""Count -> what was counted, after its number; docs/search.md says what the words mean."""

CUTS = {
    "DEVICE_MEMORY": "over device memory",
    "KV_ROOM": "no room for a KV cache",
    "SLOW_LAYOUT": "layout too slow",
    "SLOW_VARIANT": "variant too slow",
    "DOMINATED": "another option as good in time and memory",
    "FRONT_OVERFLOW": "beyond the options that a task keeps",
    "GROUP_MEMORY": "groups whose tasks do not fit together",
    "BOUND": "assignments that a bound ruled out",
    "COMBINATION_OVERFLOW": "groups with more combinations than are looked at",
}
"""Reason of a cut -> the reason in words."""
_CUT = "cut_"


def search_lines(result: SearchResult) -> list[str]:
    """Return what the search did and left out, and whether anything ended it before its time."""
    counts = result.counts | result.work
    done = [f"{counts[name]:,} {words}" for name, words in _named(COUNTS, counts).items() if counts[name]]
    lines = [f"search: {', '.join(done)}"]
    cuts = {name.removeprefix(_CUT): number for name, number in counts.items() if name.startswith(_CUT) and number}
    if cuts:
        reasons = [f"{cuts[name]:,} {words}" for name, words in _named(CUTS, cuts).items()]
        lines.append(f"options left out, by reason: {', '.join(reasons)}")
    if result.stopped_by_time:
        lines.append(
            "search: stopped by the time limit; another run may find another plan (use --budget for equal results)"
        )
    if result.interrupted:
        lines.append("search: interrupted; this is the best plan found until then")
    return lines


def _named(words: Mapping[str, str], counts: Mapping[str, int]) -> dict[str, str]:
    """Words of all counts, in the order of ``words``; a count without any goes by its own name."""
    known = {name: each for name, each in words.items() if name in counts}
    others = {name: name.replace("_", " ") for name in sorted(counts.keys() - words.keys()) if _CUT not in name}
    return known | others
