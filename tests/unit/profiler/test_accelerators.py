"""What drivers print, in samples made up here after their documented formats."""

from __future__ import annotations

import json

from hetrl_profiler.accelerators import host_link, parse_amd, parse_nvidia, parse_nvlink


def test_nvidia_smi_query() -> None:
    text = "NVIDIA H100 80GB HBM3, GPU-1, 550.54.15, 96.00.61, 81559, 700.00, 1980, 2619, 5, 16, Enabled, [N/A]\n"
    facts = parse_nvidia(text)
    assert facts["name"] == "NVIDIA H100 80GB HBM3" and facts["driver"] == "550.54.15"
    assert facts["max_sm_MHz"] == "1980" and facts["pcie_gen"] == "5"
    assert "mig" not in facts, "what the driver does not know is absent"
    assert parse_nvidia("") == parse_nvidia("No devices were found\n") == {}


def test_nvlink_status_adds_up_to_one_direction() -> None:
    lines = "".join(f"\t Link {number}: 26.562 GB/s\n" for number in range(18))
    assert sum(parse_nvlink("GPU 0: NVIDIA H100 (UUID: GPU-1)\n" + lines)) == 18 * 26.562e9
    assert parse_nvlink("GPU 0: x\n\t Link 0: <inactive>\n") == []


def test_amd_smi_and_rocm_smi() -> None:
    listed = [
        {"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}, "limit": {"max_power": {"value": 750, "unit": "W"}}},
        {"gpu": 1, "asic": {"market_name": "other", "rev_id": "N/A"}, "caches": []},
    ]
    assert parse_amd(json.dumps(listed), 0) == {"asic.market_name": "AMD Instinct MI300X", "limit.max_power": "750 W"}
    assert parse_amd(json.dumps({"gpu_data": listed}), 1) == {"asic.market_name": "other"}
    cards = {"card0": {"Card series": "Instinct MI250X", "Driver version": ""}, "system": {"Driver version": "6.8"}}
    assert parse_amd(json.dumps(cards), 0) == {"Card series": "Instinct MI250X"}
    assert parse_amd(json.dumps(cards), 5) == parse_amd("not json", 0) == parse_amd("7", 0) == {}


def test_without_nvlink_the_host_link_is_pcie() -> None:
    """On a machine without nvidia-smi nothing says that NVLink is there."""
    found = host_link("cuda", 0, {"pcie_gen": "4", "pcie_width": "16"})
    assert found.name == "pcie4_intra" and found.bytes_per_second == 16 * 1.969e9
    assert host_link("cuda", 0, {}).bytes_per_second == host_link("rocm", 0, {"pcie_gen": "4"}).bytes_per_second == 0
