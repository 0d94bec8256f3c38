"""Budgets: lines by folder, verbs, import cycles, names and wordings; see `benchmarks.structure`."""

from __future__ import annotations

from benchmarks import structure
from offline_data_cli.verbs import GROUPS, VERBS

MOST_FILES, MOST_VERBS, MOST_PARTICIPLES = 470, 32, 52


def test_lines_by_folder() -> None:
    sizes = {folder: sum(lengths) for folder, lengths in structure.sizes().items()}
    assert sizes.keys() == structure.BUDGETS.keys()
    over = {
        folder: f"{sizes[folder]} lines, budget {budget}"
        for folder, budget in structure.BUDGETS.items()
        if sizes[folder] > 1.05 * budget
    }
    assert over == {}
    assert len(structure.product_files()) <= MOST_FILES


def test_names() -> None:
    assert structure.classes_defined_twice() == {}
    assert len(structure.participles()) <= MOST_PARTICIPLES
    assert sum(map(len, VERBS.values())) + len(GROUPS) <= MOST_VERBS


def test_wordings() -> None:
    assert structure.wordings() == {name: [] for name in structure.WORDS}
