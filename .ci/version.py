"""Compare the version of pyproject.toml with the other files that state it, and with a tag.

python .ci/version.py                       # CITATION.cff, conda recipe, changelog
python .ci/version.py --tag v0.1.0          # also: the tag, and that the changelog has a date
python .ci/version.py --tag v0.1.0 --notes  # prints the changelog of this version
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PLACES = {
    "pyproject.toml": r'^version = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "conda/recipe.yaml": r'^  version: "(.+)"$',
    "CHANGELOG.md": r"^## (\S+) – ",
}
"""The first match in each file is its version."""


def versions(repository: Path) -> dict[str, str | None]:
    """Return the version that each file states, None if it states none."""
    found = {}
    for name, pattern in PLACES.items():
        match = re.search(pattern, (repository / name).read_text("utf-8"), re.MULTILINE)
        found[name] = match and match[1]
    return found


def newest_section(repository: Path) -> tuple[str, str]:
    """Return date and text of the newest version in the changelog."""
    _, section = (repository / "CHANGELOG.md").read_text("utf-8").split("\n## ", 1)
    heading, _, text = section.split("\n## ", 1)[0].partition("\n")
    return heading.partition(" – ")[2], text.strip()


def defects(repository: Path, tag: str | None = None) -> list[str]:
    """Return a sentence for each file that disagrees with pyproject.toml, or with the tag."""
    found = versions(repository)
    version = found["pyproject.toml"]
    sentences = [
        f"{name} has version {other}, pyproject.toml {version}"
        for name, other in found.items()
        if other != version
    ]
    if tag is not None and tag != f"v{version}":
        sentences.append(f"the tag is {tag}, and pyproject.toml has version {version}")
    date, _ = newest_section(repository)
    if tag is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        sentences.append(f"CHANGELOG.md: expected the date of the release, found {date!r}")
    return sentences


def main(arguments: Sequence[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Print what disagrees, or the notes, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tag", help="the release's, such as v0.1.0")
    parser.add_argument("--notes", action="store_true", help="print the newest changes")
    given = parser.parse_args(arguments)
    sentences = defects(repository, given.tag)
    for sentence in sentences:
        print(sentence, file=sys.stderr)  # noqa: T201
    if given.notes:
        print(newest_section(repository)[1])  # noqa: T201
    return int(bool(sentences))


if __name__ == "__main__":
    sys.exit(main())
