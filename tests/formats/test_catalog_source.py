from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import AccessError, NotFoundError
from offline_data.formats.base import CatalogEntry, CatalogSource, RawDataset, Release
from offline_data.formats.registry import iter_sources


class Lab(CatalogSource):
    name, title = "lab", "a laboratory"
    licence, citation = "MIT", "the laboratory"

    def catalog(self) -> list[CatalogEntry]:
        return [CatalogEntry("reach-v1", notes=("It is slow.",)), CatalogEntry("push-v1")]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        return Release(self.find(name, revision).name, "unversioned")

    def has_format(self, path: Path) -> bool:
        if path.suffix == ".locked":
            raise AccessError(f"{path} cannot be read")
        return path.suffix == ".lab"

    def open(self, release: Release, raw: Path) -> RawDataset:
        raise NotImplementedError


def test_only_published_datasets_have_the_facts_of_the_list(tmp_path: Path) -> None:
    info = Lab().describe(Release("reach-v1", "1"), "It is ours.", environment={"id": "Reach"})
    assert (info.licence, info.citation, info.environment) == ("MIT", "the laboratory", {"id": "Reach"})  # fmt: skip
    assert info.notes == ("It is slow.", "It is ours.")
    for other in (Release("mine", "1"), Release("reach-v1", "1", local=tmp_path)):
        info = Lab().describe(other, "It is ours.", environment={"id": "Reach"})
        assert (info.licence, info.citation, info.environment) == (None, None, {})
        assert info.notes == ("It is ours.",)


def test_a_file_that_cannot_be_read_is_not_accepted() -> None:
    assert Lab().accepts(Path("a.lab"))
    assert not Lab().accepts(Path("a.locked"))


def test_revisions_of_a_source_that_has_none(settings: Settings) -> None:
    assert Lab().resolve("push-v1", "unversioned", settings) == Lab().resolve("push-v1", None, settings)  # fmt: skip
    with pytest.raises(NotFoundError, match="lab:push-v1@3: its files have no revisions") as caught:
        Lab().resolve("push-v1", "3", settings)
    assert caught.value.hint == "ask for lab:push-v1"


@pytest.mark.parametrize(
    "source",
    [
        source
        for source in [Lab(), *iter_sources()]
        if isinstance(source, CatalogSource)
        and source.catalog()
        and source.name != "lerobot"  # any repository is one
    ],
    ids=lambda source: source.name,
)
def test_a_name_that_is_not_listed(source: CatalogSource, settings: Settings) -> None:
    offline = Settings(settings.root, offline=True)
    name = source.catalog()[0].name
    with pytest.raises(NotFoundError, match=f"^There is no {source.name}:") as caught:
        source.resolve(name[:-1] + "~" if len(name) > 1 else "~", None, offline)
    assert str(caught.value.hint).startswith(f"did you mean {source.name}:")
    with pytest.raises(NotFoundError) as caught:
        source.resolve("zzzzzzzz", None, offline)
    assert f"`offline-data list {source.name}` lists" in str(caught.value.shell_hint)
