"""Names of devices: every one means one catalogue row, and every row has a source per figure."""

from __future__ import annotations

import pytest

from hetrl import catalog
from hetrl.errors import SpecError
from hetrl.spec.device_names import catalogue_devices, find_device
from hetrl.spec.topo_text import parse_device_list, parse_topo, parse_visible_devices


@pytest.mark.parametrize("name", catalogue_devices())
def test_every_row_is_found_by_all_its_names_and_has_sources(name: str) -> None:
    entry = catalog.read("devices.yaml")[name]
    for alias in (name, *entry["driver_names"], *entry.get("aliases", ())):
        assert find_device(alias) == (catalogue_devices()[name], "")
    assert set(entry["sources"]) == {"flops_per_second", "memory_bytes", "memory_bytes_per_second"}
    assert all(entry["sources"].values())


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("nvidia h100", "H100"),
        ("H100 SXM5 80GB", "H100"),
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"),
        ("A100-40G", "A100-40GB"),
        ("a100_40gb", "A100-40GB"),
        ("A100 40GB SXM4", "A100-40GB"),
        ("AMD-Instinct-MI300X-OAM", "MI300X"),
        ("nvidia-h100-80gb", "H100"),
        ("TPU-V5P", "TPU-v5p"),
        ("A100-PCIE-40GB", "A100-40GB-PCIe"),
    ],
)
def test_spelling_does_not_matter(written: str, name: str) -> None:
    assert find_device(written)[0].name == name


def test_close_names_stay_apart() -> None:
    names = [
        "A10",
        "A10G",
        "A100-40GB",
        "L40",
        "L40S",
        "L4",
        "RTX 4090",
        "RTX 4090 D",
        "H100 PCIe",
        "H100 NVL",
        "H20",
        "H200",
    ]
    assert len({find_device(name)[0].name for name in names}) == len(names)


@pytest.mark.parametrize(
    "name", ["G", "RTX", "aws-neuron-core", "Tesla", "GPU", "Intel-GAUDI", "H1000", "", "MIG 1g.5gb"]
)
def test_names_of_no_card_are_refused(name: str) -> None:
    with pytest.raises(SpecError):
        find_device(name)


def test_plain_a100_is_the_80_gb_card_with_a_warning() -> None:
    device, warning = find_device("A100")
    assert device.name == "A100-80GB"
    assert "A100-40GB" in warning


def test_memory_decides_between_cards_of_one_name() -> None:
    assert find_device("A100", memory_bytes=40960 * 2**20) == (catalogue_devices()["A100-40GB"], "")
    assert find_device("NVIDIA GeForce RTX 3080", memory_bytes=12288 * 2**20)[0].name == "RTX-3080-12GB"


def test_slices_have_their_own_memory_and_share_of_compute() -> None:
    parent = catalogue_devices()["A100-40GB"]
    device, _ = find_device("NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    assert device.memory_bytes == 20e9
    assert device.flops_per_second["bf16"] == parent.flops_per_second["bf16"] * 3 / 8
    with pytest.raises(SpecError, match="no such slice"):
        find_device("A100-40GB MIG 1g.80gb")


def test_partitioned_gpus_count_as_their_slices() -> None:
    listed = parse_device_list(
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 2g.20gb     Device  0: (UUID: MIG-a)\n"
        "  MIG 1g.10gb     Device  1: (UUID: MIG-b)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n"
    )
    assert [(each.type.name, each.gpu_index, each.uuid) for each in listed] == [
        ("H100-MIG-2g.20gb", 0, "MIG-a"),
        ("H100-MIG-1g.10gb", 0, "MIG-b"),
        ("A100-80GB", 1, "GPU-2"),
    ]


def test_visible_devices_may_be_uuids() -> None:
    assert parse_visible_devices("1, GPU-8f6e-11aa") == ("1", "GPU-8f6e-11aa")
    for text in ("0,0", "0,first", "MIG-"):
        with pytest.raises(SpecError):
            parse_visible_devices(text)


TOPO = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV4\tPIX\tSYS\tPXB\t0-15,32-47\t0
GPU1\tNV4\t X \tPHB\tSYS\tNODE\t0-15,32-47\t0
GPU2\tPIX\tPHB\t X \tNV4\tSYS\t16-31\t1
GPU3\tSYS\tSYS\tNV4\t X \tSYS\t16-31\t1
NIC0\tPXB\tNODE\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""


def test_topology_text() -> None:
    matrix = parse_topo(TOPO)
    device = catalogue_devices()["A40"]
    assert matrix.nics == ("NIC0",)
    assert matrix.cpu_ranges[0] == ((0, 15), (32, 47))
    assert matrix.nvlink_groups == ((0, 1), (2, 3))
    assert matrix.link(0, 1, device).bytes_per_second == 56.25e9
    assert matrix.link(0, 3, device).bytes_per_second < matrix.link(0, 2, device).bytes_per_second < 56.25e9
    assert matrix.slowest_link(device).kind == "SYS"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing here",
        TOPO.replace("PHB", "XYZ", 1),
        TOPO.replace("GPU3\tSYS\tSYS\tNV4\t X \tSYS", "GPU3\tSYS"),
        TOPO.replace("GPU1\tNV4\t X ", "GPU1\tNV4\tNV4"),
    ],
)
def test_broken_topology_text_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_topo(text)


@pytest.mark.parametrize("blank", ["", "   ", "\x1c", "\x1f \t"])
def test_blank_lines_between_the_rows_of_a_topology_are_passed_over(blank: str) -> None:
    text = f"\tGPU0\tGPU1\n{blank}\nGPU0\t X \tNV18\n{blank}\nGPU1\tNV18\t X \n"
    assert len(parse_topo(text, "topo").gpus) == 2
