"""A lower bound of a step's price: every task's work where it is cheapest, whatever the rest of the plan.

The devices that a plan uses are paid for during the whole step (or period), and so for at least as long as they work. A
task's work on devices of one type takes at least its fluid device-seconds, on several types each a share of them.
"""

from __future__ import annotations

import numpy as np

from hetrl.cost.tables import CostTables
from hetrl.search.bounds.fluid import FluidBounds


def dollar_bound(tables: CostTables, fluid: FluidBounds, floor_seconds: float) -> float:
    """Dollars that no plan's step (or period) can undercut.

    Parameters
    ----------
    floor_seconds
        Seconds that no step can undercut: at least the cheapest device is paid for as long.

    Returns
    -------
    float
        NaN where a node has no price.
    """
    per_second = tables.node_usd / 3600  # of one device of every node
    num_types = fluid.device_seconds.shape[1]
    cheapest = np.full(num_types, np.inf)
    np.minimum.at(cheapest, tables.node_type, per_second)
    present = np.unique(tables.node_type)
    work = (fluid.device_seconds[:, present] * cheapest[present]).min(axis=1)
    return max(float(work.sum()), floor_seconds * float(per_second.min()))
