"""What the loop says of the machine that it ran on."""

from __future__ import annotations

from benchmarks.loop_report import company_lines, shares_text


def test_a_loop_on_an_idle_machine_has_nothing_to_warn_of() -> None:
    (line,) = company_lines({"cpu-fast": 1.01, "cpu-slow": 2.03})
    assert "cpu-fast 1.01 s, cpu-slow 2.03 s" in line


def test_a_loop_beside_other_programs_says_so() -> None:
    _, warning = company_lines({"cpu-fast": 2.43, "cpu-slow": 2.1})
    assert warning.startswith("other programs used the core of cpu-fast:")


def test_shares_are_prompts_by_device() -> None:
    assert shares_text({"actor_generate": (17, 7), "actor_train": (15, 9)}) == "actor_generate 17+7, actor_train 15+9"
