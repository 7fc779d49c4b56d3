"""What ran, where, how long: the append-only store of measurements.

``measurement``  one observation: amounts of work, what was measured, what the plan had predicted
``machine``      the facts of the machine it was taken on
``store``        JSON lines on disk, appended, never rewritten
``worker_environment``  of the processes that run models
"""

from hetrl.measure.machine import MachineFacts, machine_facts
from hetrl.measure.measurement import Measurement
from hetrl.measure.store import MeasurementStore, load_measurements

__all__ = ["MachineFacts", "Measurement", "MeasurementStore", "load_measurements", "machine_facts"]
