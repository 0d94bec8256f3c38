"""The pages of `docs/guides` and the first pages of the site, run as written, each in a folder of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import offline_data
from docs.generate.reference import EXAMPLES
from tests.documented import ROOT, follow, read
from tests.pipeline.export.conftest import flat_batch
from tests.slow import slow_but
from tests.toys.hosts import published
from tests.toys.stored import write_stored
from tests.toys.text import write_chat_tokenizer, write_tokenizer

PAGES = [
    "docs/index.md",
    "docs/start.md",
    "docs/episodes.md",
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/guides/*.md")),
]
QUICK = {"docs/index.md", "docs/start.md", "docs/guides/sampling.md"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with published(tmp_path_factory.mktemp("hosts")) as environment:
        yield environment


@pytest.mark.parametrize("page", slow_but(QUICK.__contains__, PAGES))
def test_the_page(
    page: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    if page == "docs/guides/text.md":
        pytest.importorskip("transformers")
        (tmp_path / "gpt2").mkdir()
        write_chat_tokenizer(tmp_path / "gpt2")
        write_tokenizer(tmp_path)
        (tmp_path / "stories.jsonl").write_text('{"text": "the cat sat on the mat"}\n')
    follow(read(page), environment)


FETCHED = {"AtariDQN", "GenDGRL", "OpenML", "Roboset", "VD4RL"}
"""Sources whose hosts have no toy here: the catalogue has the dataset, and the class takes the arguments."""


@pytest.mark.parametrize("name", slow_but({"DatasetMixture"}.__contains__, EXAMPLES))
def test_an_example_of_a_class(
    name: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    calls: list[object] = ["the class itself"]
    if name.removesuffix("ExperienceReplay") in FETCHED or name == "TokenizedDatasetLoader":
        calls.clear()
        made = inspect.signature(getattr(offline_data, name))
        names = getattr(getattr(offline_data, name), "available_datasets", None)

        def call(*given: object, **options: object) -> None:
            calls.append(made.bind(*given, **options))
            assert names is None or given[0] in names

        for module in (offline_data, offline_data.torchrl):
            monkeypatch.setattr(module, name, call, raising=False)
    if name.endswith("Tokenizer"):
        pytest.importorskip("transformers")
        (tmp_path / "gpt2").mkdir()
        write_chat_tokenizer(tmp_path / "gpt2")
    follow(f"```python\n{EXAMPLES[name]}```\n", environment)
    assert calls != []
    assert name in EXAMPLES[name]


def test_the_lines_that_help_begins_with(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, lines = (offline_data.__doc__ or "").partition("\n\n")
    code, _, _ = lines.partition("\n\n`")
    printed = follow(f"```python\n{dedent(code)}\n```\n", environment)
    assert printed.startswith("torch.Size([256, 11])\nDatasetView d4rl:hopper-medium-v2@")


@pytest.mark.slow
def test_sharing_by_the_hub(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_stored(tmp_path / "root", "local:mine@1", flat_batch())
    page, _, _ = read("docs/share.md").partition("## A folder")
    follow(f"{page}\n```python\nprint(len(ds))\n```\n\n```text\n11\n```\n", environment)
