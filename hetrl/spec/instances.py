"""Cloud instances of the catalogue: which one usually carries a device."""

from __future__ import annotations

from typing import Any

from hetrl import catalog
from hetrl.spec.devices import DeviceType


def usual_instance(device: DeviceType, num_devices: int) -> dict[str, Any] | None:
    """Return the usual cloud instance with that device and count, else the next larger (else the largest) one."""
    rows = [
        {"name": name, **row}
        for name, row in catalog.read("instances.yaml").items()
        if row["device"] == device.name.split("@")[0]
    ]
    if not rows:
        return None
    return next((row for row in rows if row["count"] == num_devices), None) or min(
        rows, key=lambda row: (row["count"] < num_devices, abs(row["count"] - num_devices))
    )
