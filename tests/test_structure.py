"""Growth of packages, import cycles, names and wordings; `python -m benchmarks.structure` prints them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import structure
from tests.remedy import assert_none


def _unrecorded() -> Iterator[str]:
    """Yield what is wrong with the record, as a line to write to it."""
    sizes = structure.package_sizes()
    for package, lines in sizes.items():
        recorded, _ = structure.RECORDED.get(package, (0, ""))
        if lines > 1.1 * recorded:
            found = f"has {lines:,} lines, recorded are {recorded:,}"
            yield f'the package {package} {found}: write "{package}": ({lines:_}, "why, in a sentence"),'
    for package in structure.RECORDED.keys() - sizes:
        yield f"there is no package {package}: remove its line"


def test_packages_that_grew_by_more_than_a_tenth_have_a_reason() -> None:
    assert_none(_unrecorded(), "write these lines to RECORDED in benchmarks/structure.py")


def test_classes_have_different_names() -> None:
    twice = structure.classes_defined_twice().items()
    assert_none(
        (f"class {name} is in {' and '.join(places)}" for name, places in twice),
        "give one of them another name, or use the one of the other module",
    )


def test_wordings() -> None:
    for remedy, places in structure.wordings().items():
        assert_none(places, remedy)
