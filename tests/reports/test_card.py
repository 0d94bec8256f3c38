"""Dataset cards as PyYAML, huggingface_hub and a reader of Markdown see them, from hostile texts too."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from huggingface_hub import DatasetCard, DatasetCardData, metadata_load

import offline_data
from offline_data import api
from offline_data.analysis.figures import DatasetStats
from offline_data.analysis.info import DatasetInfo
from offline_data.reports.card import dataset_card, size_category
from tests.pipeline.ingest.here import conversions_start_no_process
from tests.reports.drawn import drawn_episodes
from tests.toys.minari import toy_episode, write_minari

__all__ = ["conversions_start_no_process"]

SIZES = [
    "n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B",
    "1B<n<10B", "10B<n<100B", "100B<n<1T", "n>1T",
]  # fmt: skip
"""As huggingface.co lists them."""

HOSTILE = (
    "a: [b\n---\n# h\n<script>x</script> | `c` [d](https://e) ![f](g) ```\n* @misc{h, i = {j}}"
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[DatasetInfo, DatasetStats]:
    root = tmp_path_factory.mktemp("root")
    stored = api.convert(drawn_episodes(), "drawn", root=root)
    found: Any = api.info(stored.path)
    return found, api.stats(stored.path, progress=False)


def _front(card: str) -> dict[str, Any]:
    """Parse the header as the Hub does: between the first two lines of three hyphens."""
    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert found
    header: dict[str, Any] = yaml.safe_load(found[1])
    return header


def test_the_header(known: tuple[DatasetInfo, DatasetStats]) -> None:
    info, stats = known
    header = _front(dataset_card(replace(info, licence="CC-BY-4.0"), stats))
    assert header == {
        "pretty_name": "drawn",
        "license": "cc-by-4.0",
        "task_categories": ["reinforcement-learning"],
        "tags": ["offline-rl", "reinforcement-learning", "local"],
        "viewer": False,
        "size_categories": ["n<1K"],
    }
    assert _front(dataset_card(replace(info, licence=None), stats))["license"] == "unknown"
    other = _front(dataset_card(replace(info, licence="My: licence\n"), stats))
    assert (other["license"], other["license_name"]) == ("other", "My: licence")


def test_size_categories_are_those_of_the_hub() -> None:
    counts = [0, *(count for power in range(3, 14) for count in (10**power - 1, 10**power))]
    found = [size_category(count) for count in counts]
    assert list(dict.fromkeys(found)) == SIZES
    for count, name in zip(counts, found, strict=True):
        limits = [
            int(number) * 10 ** (3 * " KMBT".index(unit))
            for number, unit in re.findall(r"(\d+)([KMBT])", name)
        ]
        if name.startswith("n>"):
            assert count >= limits[0]
        else:
            assert ([0, *limits][-2] if len(limits) > 1 else 0) <= count < limits[-1]


def test_the_hub_reads_it(known: tuple[DatasetInfo, DatasetStats]) -> None:
    card = DatasetCard(dataset_card(*known))
    assert card.data.pretty_name == "drawn"
    assert card.data.task_categories == ["reinforcement-learning"]
    assert card.data.size_categories == ["n<1K"]
    assert card.text.lstrip().startswith("# local:drawn")


def test_the_header_is_valid_metadata_of_the_hub(known: tuple[DatasetInfo, DatasetStats]) -> None:
    configs = [{"config_name": "default", "data_files": "data/*.parquet"}]
    card = DatasetCard(
        dataset_card(*known, header={"configs": configs}), ignore_metadata_errors=False
    )
    data = DatasetCardData(**card.data.to_dict(), ignore_metadata_errors=False)
    assert isinstance(card.data, DatasetCardData)
    assert data.to_dict() == card.data.to_dict()
    assert data.to_dict()["configs"] == configs
    assert "viewer" not in data.to_dict()
    plain = DatasetCard(dataset_card(*known), ignore_metadata_errors=False)
    assert metadata_load_of(str(plain))["viewer"] is False  # the hub cannot load the directory
    metadata = metadata_load_of(str(card))
    assert metadata["task_categories"] == ["reinforcement-learning"]
    assert DatasetCard(str(card)).data.to_dict() == metadata


def metadata_load_of(card: str) -> dict[str, Any]:
    """Return the header as `huggingface_hub` reads it before it sends a card."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "README.md")
        file.write_text(card, encoding="utf-8")
        found: dict[str, Any] | None = metadata_load(file)
    assert found is not None
    return found


def test_each_feature_has_its_figures_and_a_drawing(
    known: tuple[DatasetInfo, DatasetStats],
) -> None:
    info, stats = known
    features = {"action.arm": {"names": ["pan", "lift"]}}
    card = dataset_card(replace(info, about={"features": features}), stats)
    table = card.partition("| Dimension |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    assert [row[0] for row in rows[:4]] == [
        "next/reward", r"action/arm\[0\] pan", r"action/arm\[1\] lift", "action/grip"
    ]  # fmt: skip
    arm: Any = stats["action/arm"]
    assert rows[1][1:4] == [f"{arm.features.quantiles[0, place]:.4g}" for place in (0, 5, 10)]
    grips = np.bincount(np.concatenate([one["actions"]["grip"] for one in drawn_episodes()]))
    heights = ["▁▂▃▄▅▆▇█".index(one) + 1 for one in rows[3][4]]
    assert heights == np.ceil(8 * grips / grips.max()).tolist()
    assert ["always the same" in row[4] for row in rows].count(True) == 1  # observation/state[3]


def test_the_body_has_schema_figures_and_how_to_load(
    known: tuple[DatasetInfo, DatasetStats],
) -> None:
    info, stats = known
    card = dataset_card(info, stats)
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in card.splitlines()]
    assert ["action/grip", "int64", r"\[\]", "steps"] in rows
    assert ["observation/state", "float32", r"\[4\]", "steps + 1"] in rows
    arm: Any = stats["action/arm"]
    figures = [f"{one:.4g}" for one in (arm.min, arm.max, arm.mean, arm.std)]
    assert ["action/arm", r"float32\[2\]", *figures, "0", "0"] in rows
    code = card.partition("```python\n")[2].partition("```")[0]
    line = next(line for line in code.splitlines() if "load_dataset" in line)
    assert line == f'ds = offline_data.load_dataset("{info.id}")'
    assert card.endswith("## Citation\n\nThe source states none.\n")


def _visible(card: str) -> str:
    """Return the Markdown without code blocks and escaped characters."""
    kept, fence = [], ""
    for line in card.splitlines():
        opened = re.match("`{3,}", line)
        if fence:
            closed = line.rstrip().strip("`") == "" and len(line) >= len(fence)
            fence = "" if closed else fence
        elif opened:
            fence = opened[0]
        else:
            kept.append(re.sub(r"\\[^\w\s]", "", line))
    assert not fence
    return "\n".join(kept)


def test_hostile_texts_are_only_text(known: tuple[DatasetInfo, DatasetStats]) -> None:
    info, stats = known
    leaf = {"dtype": "float32", "shape": (1,), "rows": "steps", "text": False}
    hostile = replace(
        info,
        name=HOSTILE,
        source=HOSTILE,
        licence=HOSTILE,
        citation=HOSTILE,
        created=HOSTILE,
        notes=[HOSTILE, "--- x", "1. y", "\x1b[31m\u202e"],
        about={"description": HOSTILE},
        parents=[HOSTILE],
        schema={HOSTILE: leaf},
        files=[{"path": HOSTILE, "url": f"https://me:secret@host/{HOSTILE}", "sha256": HOSTILE}],
        dropped=[{"key": HOSTILE, "reason": HOSTILE}],
        converter={"name": HOSTILE, "version": HOSTILE},
    )
    for citation in (HOSTILE, "@misc{a,\n title={```}\n}\n# h\n````", "@" + HOSTILE):
        card = dataset_card(replace(hostile, citation=citation), stats)
        header = _front(card)
        assert header["pretty_name"] == " ".join(HOSTILE.split())
        assert header["license_name"] == " ".join(HOSTILE.split())
        assert set(header) == {
            "pretty_name", "license", "license_name", "task_categories", "tags", "viewer",
            "size_categories",
        }  # fmt: skip
        body = _visible(card.partition("\n---\n")[2])
        links = re.findall(r"\[d\]\(https://e\)|<https://host/a:>", body)
        assert len(links) >= 2
        body = re.sub(r"\[d\]\(https://e\)|<https://host/a:?>", "", body)
        headings = [line for line in body.splitlines() if line.startswith("#")]
        assert len(headings) == 6 == len([line for line in headings if re.match("##? ", line)])
        for markup in ("<script", "](", "![", "`", "://", "@misc", "secret", "\x1b", "\u202e"):
            assert markup not in body, markup
        tables = [line.count("|") for line in body.splitlines() if line.startswith("|")]
        assert set(tables) == {5, 6, 9}
        assert not re.search(r"^(---|\* |- - |\d+\. )", body, re.MULTILINE)


def test_card_of_an_id(tmp_path: Path) -> None:
    arrays = {
        "observations": np.zeros((1000, 1)),
        "actions": np.zeros(1000),
        "rewards": np.zeros(1000),
        "terminals": np.arange(1000) % 100 == 99,
    }
    offline_data.convert(arrays, "thousand", root=tmp_path)
    header = _front(offline_data.card("local:thousand", root=tmp_path, progress=False))
    assert header["size_categories"] == ["1K<n<10K"]


def run_loading(card: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Execute the code of a card as a reader does; return its names."""
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(root))
    names: dict[str, Any] = {}
    exec(card.partition("```python\n")[2].partition("```")[0], names)  # noqa: S102
    return names


def test_a_minari_folder_keeps_licence_links_and_citation(
    realdata: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = realdata / "minari_door_human_v2" / "D4RL" / "door" / "human-v2"
    stored = offline_data.convert(folder, "mine", root=tmp_path)
    assert stored.manifest.licence == "CC-BY-4.0"
    card = offline_data.card("local:mine", root=tmp_path, progress=False)
    assert _front(card)["license"] == "cc-by-4.0"
    assert "[DAPG](https://github.com/aravindr93/hand_dapg) repository" in card
    address = "https://robotics.farama.org/envs/adroit_hand/adroit_door/"
    assert f"[AdroitHandDoor-v1]({address})" in card
    entry = card.partition("```bibtex\n")[2].partition("```")[0]
    assert entry.startswith("@misc{D4RL-door-human-v2,\n  author = {Rodrigo de Lazcano},\n")
    assert "title = {D4RL/door/human-v2}" in entry
    assert "Minari. Zenodo. https://doi.org/10.5281/zenodo.13767625" in entry
    assert len(run_loading(card, tmp_path, monkeypatch)["batch"]) == 256


@pytest.mark.parametrize(("author", "shown"), [(["A", "B"], "A and B"), ("A", "A"), (None, None)])
def test_authors_of_a_citation(tmp_path: Path, author: Any, shown: str | None) -> None:
    told = {"author": author, "citation": "A, in B."}
    folder = write_minari(tmp_path / "any-v0", [toy_episode(0, 3)], metadata=told)
    offline_data.convert(folder, "mine", root=tmp_path / "root")
    card = offline_data.card("local:mine", root=tmp_path / "root", progress=False)
    lines = [line for line in card.splitlines() if line.startswith("  author = ")]
    assert lines == ([f"  author = {{{shown}}},"] if shown else [])


@pytest.mark.parametrize(("dataset_id", "licence"), [
    ("D4RL/door/human-v2", "CC-BY-4.0"), ("D4RL/none/such-v9", None), ("mine-v0", None), (3, None)
])  # fmt: skip
def test_the_catalogue_is_asked_by_the_name_in_the_files(
    tmp_path: Path, dataset_id: Any, licence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_minari(tmp_path / "any-v0", [toy_episode(e, 3) for e in range(3)])
    file = folder / "data" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dataset_id": dataset_id}))
    stored = offline_data.convert(folder, "mine", root=tmp_path / "root")
    assert stored.manifest.licence == licence
    card = offline_data.card("local:mine", root=tmp_path / "root", progress=False)
    run_loading(card, tmp_path / "root", monkeypatch)
    other = tmp_path / "elsewhere"
    offline_data.convert(shutil.copytree(stored.path, tmp_path / "copy"), "mine", root=other)
    run_loading(card, other, monkeypatch)
