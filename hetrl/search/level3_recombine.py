"""Level 3 once more, for the finalists: all options that can still win, and the step as objective.

The `Combiner` chooses among the few fastest options of a task, because it is asked for thousands of groups. What fits a
tight memory best is often not among them: a scorer that leaves one device type alone, or a training task on the host.
Here every task gets the Pareto front, over seconds and the bytes of every kind of node, of what is fast enough to win
(`hetrl_kernels.fronts`, as in the exact solver). Groups are combined anew one after the other, the others as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.tables import TASK_KINDS
from hetrl.search.context import Assignment, Candidate, Grouping, SearchContext
from hetrl.search.level3_colocation import SHARED
from hetrl_kernels.groups import Choice
from hetrl_kernels.options import Option
from hetrl_kernels.recombine import recombine

SLACKS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.20)
"""Steps are asked for that exceed what the tasks take at least by these, one after the other: short fronts first."""
MAX_VISITS = 100_000
"""Nodes of one search: a tenth of a second."""

SCORE = TASK_KINDS.index("score")
Floats = NDArray[np.float64]


def choices_of(context: SearchContext, candidate: Candidate) -> list[Choice]:
    """Options of all groups of a feasible candidate."""
    if candidate.recombined:
        return _recombined_choices(context, candidate.grouping, candidate.assignment)
    return _combined_choices(context, candidate.grouping, candidate.assignment)


def recombined(context: SearchContext, candidate: Candidate) -> Candidate:
    """Combine the options of a feasible candidate's groups anew; the same candidate where that gains nothing."""
    choices = _recombined_choices(context, candidate.grouping, candidate.assignment)
    cost = context.steps.objective(choices)
    return replace(candidate, cost=cost, recombined=True) if cost < candidate.cost else candidate


def _combined_choices(context: SearchContext, grouping: Grouping, assignment: Assignment) -> list[Choice]:
    found = []
    for tasks, counts in zip(grouping, assignment, strict=True):
        choice = context.steps.group(tasks, counts)
        assert choice is not None  # the candidate is feasible
        found.append(choice)
    return found


def _recombined_choices(context: SearchContext, grouping: Grouping, assignment: Assignment) -> list[Choice]:
    """Options that are chosen anew group after group, kept for `choices_of`."""
    known = context.recombined.get((grouping, assignment))
    if known is not None:
        return known
    choices = _combined_choices(context, grouping, assignment)
    cost = context.steps.objective(choices)
    for group, (tasks, counts) in enumerate(zip(grouping, assignment, strict=True)):
        options = _best_of_group(context, tasks, counts, choices, group) if tasks else None
        if options is None:
            continue
        changed = [*choices[:group], context.steps.choice(options, counts), *choices[group + 1 :]]
        changed_cost = context.steps.objective(changed)
        if changed_cost < cost:
            choices, cost = changed, changed_cost
    context.recombined[grouping, assignment] = choices
    return choices


def _best_of_group(
    context: SearchContext, tasks: tuple[int, ...], counts: bytes, choices: list[Choice], group: int
) -> tuple[Option, ...] | None:
    """Best options of a group beside the others; None if they are no better than those it has."""
    loads = _loads(context, choices)
    floors = np.delete(loads, group, axis=0).max(axis=0, initial=0.0)
    fastest = {
        option.task: min(each.seconds for each in (option, *context.steps.alone(option.task, counts)[:1]))
        for option in choices[group].options
    }
    least = np.bincount(context.phase_of[list(fastest)], list(fastest.values()), minlength=len(floors))
    lowest = float(np.maximum(floors, least).sum())
    now = float(np.maximum(floors, loads[group]).sum())
    for slack in SLACKS:
        limit = min(now, (1.0 + slack) * lowest)
        if limit <= lowest:
            break
        # a task may be slower than its fastest option by what its phase may be longer
        spare = limit - lowest + np.maximum(floors - least, 0.0)
        cutoffs = {task: seconds + float(spare[context.phase_of[task]]) for task, seconds in fastest.items()}
        options = _best_below(context, tasks, counts, cutoffs, floors, limit)
        if options is not None or limit == now:
            return options
    return None


def _best_below(
    context: SearchContext,
    tasks: tuple[int, ...],
    counts: bytes,
    cutoffs: dict[int, float],
    floors: Floats,
    limit: float,
) -> tuple[Option, ...] | None:
    """Best options of a group, each below its task's cutoff, whose step is shorter than the limit."""
    finder = context.front_finder
    fronts = {task: finder.front(task, counts, cutoff) for task, cutoff in cutoffs.items()}
    pairs = {
        (trainer, scorer): finder.shared_pairs(trainer, scorer, counts, cutoffs[trainer], cutoffs[scorer])
        for scorer, trainer in context.trainers.items()
        if scorer in cutoffs and trainer in cutoffs and context.tables.task_kind[scorer] == SCORE
    }
    return recombine(finder, tasks, counts, fronts, pairs, context.phase_of, floors, limit, MAX_VISITS)


def _loads(context: SearchContext, choices: Sequence[Choice]) -> Floats:
    """Seconds ``[group, phase]`` of the groups' tasks, in the last phase with the syncs that keep them busy."""
    loads = np.zeros((len(choices), int(context.phase_of.max()) + 1))
    place = {option.task: (group, option) for group, choice in enumerate(choices) for option in choice.options}
    for task, (group, option) in place.items():
        loads[group, context.phase_of[task]] += option.seconds
        if task in context.trainers and option.weights != SHARED:
            source, trainer = place[context.trainers[task]]
            seconds = context.steps.weight_sync(trainer, option)
            for busy in {group, source}:
                loads[busy, -1] += seconds
    return loads
