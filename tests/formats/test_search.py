"""Catalogues of sources: listed, found, searched, with and without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import NetworkError, NotFoundError
from offline_data.base.ids import DatasetId
from offline_data.formats import search as catalog
from offline_data.formats.base import CatalogEntry
from offline_data.testing.toy import toy_batch
from tests.toys.stored import write_stored


@dataclass
class FakeSource:
    """A source, as far as lists go."""

    name: str
    packaged: Sequence[CatalogEntry] = ()
    published: Sequence[CatalogEntry] = ()
    own: Sequence[CatalogEntry] = ()
    reachable: bool = True
    action: None = None
    asked: list[str] = field(default_factory=list)
    licence: str | None = "CC0-1.0"
    citation: str | None = None

    def catalog(self) -> Sequence[CatalogEntry]:
        return self.packaged

    def local(self, settings: Settings) -> Sequence[CatalogEntry]:
        assert settings.minari_path
        return self.own

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        assert not settings.offline
        self.asked.append("remote")
        if not self.reachable:
            raise NetworkError("no answer")
        return self.published


HOPPER = CatalogEntry("hopper-medium-v2", 1000, 10, 5000, "Gym MuJoCo, medium policy", ("odd",))
ANT = CatalogEntry("ant-medium-v2", summary="Gym MuJoCo")
NEW = CatalogEntry("brand-new-v0")
OWN = CatalogEntry("mine/own-v0")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeSource]:
    made = {
        "d4rl": FakeSource("d4rl", [HOPPER, ANT], [HOPPER, ANT, NEW]),
        "minari": FakeSource("minari", [], [], [OWN]),
    }

    def get_source(name: str) -> FakeSource:
        if name not in made:
            raise NotFoundError(f"No source is called {name!r}")
        return made[name]

    monkeypatch.setattr(catalog, "get_source", get_source)
    monkeypatch.setattr(catalog, "get_catalog", get_source)
    monkeypatch.setattr(catalog, "iter_catalogs", lambda: iter(made.values()))
    monkeypatch.setattr(catalog, "source_names", lambda: sorted(made))
    return made


@pytest.fixture
def online(settings: Settings) -> Settings:
    return replace(settings, offline=False)


def _ids(datasets: Sequence[catalog.CatalogDataset]) -> list[str]:
    return [dataset.id for dataset in datasets]


def test_a_remote_is_asked_for_its_list(fakes: dict[str, FakeSource], online: Settings) -> None:
    listing = catalog.list_remote("d4rl", online)
    names = ("hopper-medium-v2", "ant-medium-v2", "brand-new-v0")
    assert _ids(listing.datasets) == [f"d4rl:{name}" for name in names]
    assert listing.notes == ()
    first = listing.datasets[0]
    figures = (first.transitions, first.episodes, first.bytes, first.notes)
    assert figures == (1000, 10, 5000, ("odd",))


def test_the_packaged_list_stands_in_and_says_so(
    fakes: dict[str, FakeSource], online: Settings, settings: Settings
) -> None:
    write_stored(settings.root, "d4rl:ant-medium-v2@1", toy_batch([2]))
    listing = catalog.list_remote(None, settings)
    assert _ids(listing.datasets) == ["d4rl:hopper-medium-v2", "d4rl:ant-medium-v2"]
    assert [dataset.here for dataset in listing.datasets] == [False, True]
    packaged = "this is the catalogue that comes with the package"
    assert listing.notes == (f"d4rl: offline, {packaged}",)
    assert all(fake.asked == [] for fake in fakes.values())
    for fake in fakes.values():
        fake.reachable = False
    listing = catalog.list_remote("d4rl", online)
    assert (len(listing.datasets), listing.notes) == (2, (f"d4rl: no answer; {packaged}",))
    with pytest.raises(NetworkError):  # there is no list at all
        catalog.list_remote("minari", online)


def test_the_cheapest_list_that_knows_is_the_last_asked(
    fakes: dict[str, FakeSource], online: Settings, settings: Settings
) -> None:
    assert catalog.find_in_catalog(DatasetId("d4rl", "brand-new-v0"), settings) is None
    for name, asked in (("ant-medium-v2", []), ("brand-new-v0", ["remote"])):
        found = catalog.find_in_catalog(DatasetId("d4rl", name), online)
        assert found is not None
        assert (found.id, fakes["d4rl"].asked) == (f"d4rl:{name}", asked)
    assert catalog.find_in_catalog(DatasetId("minari", "mine/own-v0"), online) is not None
    assert fakes["minari"].asked == []
    with pytest.raises(NotFoundError) as caught:
        catalog.find_in_catalog(DatasetId("d4rl", "ant-medum-v2"), online)
    assert "did you mean d4rl:ant-medium-v2" in str(caught.value.hint)
    assert fakes["d4rl"].asked == ["remote"]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("MEDIUM hopper", ["d4rl:hopper-medium-v2"]),
        ("gym mujoco", ["d4rl:ant-medium-v2", "d4rl:hopper-medium-v2"]),
        ("own", ["minari:mine/own-v0"]),
        ("kept", ["local:kept"]),
    ],
)
def test_search_wants_every_word(
    fakes: dict[str, FakeSource], settings: Settings, query: str, ids: list[str]
) -> None:
    write_stored(settings.root, "local:kept@1", toy_batch([2]))
    assert _ids(catalog.search(query, settings).datasets) == ids
    assert all(fake.asked == [] for fake in fakes.values())


@pytest.mark.parametrize("query", ["hoper-medium-v2", "d4rl:hoper-medium-v2"])
def test_nothing_found_offers_the_nearest(
    fakes: dict[str, FakeSource], settings: Settings, query: str
) -> None:
    found = catalog.search(query, settings)
    said = f"no dataset matches {query!r}; did you mean d4rl:hopper-medium-v2"
    assert found.datasets == ()
    assert found.notes[0].startswith(said)


@pytest.mark.parametrize(
    ("query", "ids", "note"),
    [
        ("hoper medum", ["d4rl:hopper-medium-v2"], "nothing has 'hoper'; showing 'hopper'"),
        ("*-medium-v2", ["d4rl:ant-medium-v2", "d4rl:hopper-medium-v2"], None),
        ("d4rl:ANT*", ["d4rl:ant-medium-v2"], None),
        ("ant*", ["d4rl:ant-medium-v2"], None),
    ],
)
def test_search_tolerates_a_letter_and_takes_globs(
    fakes: dict[str, FakeSource], settings: Settings, query: str, ids: list[str], note: str | None
) -> None:
    found = catalog.search(query, settings)
    assert _ids(found.datasets) == ids
    assert (found.notes[0] if found.notes else None) == note


def test_search_has_names_that_begin_with_a_word_first_and_new_versions_first(
    fakes: dict[str, FakeSource], settings: Settings
) -> None:
    names = (
        "bullet-hopper-v0",
        "hopper-v2",
        "hopper-v10",
        "hopper-x-v2",
        "mine/hopper/v0",
        "hopper",
    )
    fakes["d4rl"].packaged = [CatalogEntry(name) for name in names]
    fakes["minari"].packaged = [CatalogEntry("hopper-v1")]
    found = [one for one in catalog.search("HOPPER", settings, limit=20) if "own" not in one.id]
    assert _ids(found) == [
        "d4rl:hopper-v10", "d4rl:hopper-v2", "d4rl:hopper", "d4rl:hopper-x-v2", "minari:hopper-v1",
        "d4rl:mine/hopper/v0", "d4rl:bullet-hopper-v0",
    ]  # fmt: skip


def test_search_keeps_to_limits_and_says_what_is_unknown(
    fakes: dict[str, FakeSource], settings: Settings
) -> None:
    hopper = ["d4rl:hopper-medium-v2"]  # 5,000 bytes, 10 episodes; the others have no figures
    for bounds, ids in (
        (catalog.Bounds(max_bytes=5000), hopper),
        (catalog.Bounds(max_bytes=4999), []),
        (catalog.Bounds(min_bytes=5000, max_episodes=10), hopper),
        (catalog.Bounds(min_episodes=11), []),
    ):
        found = catalog.search("medium", settings, bounds)
        assert _ids(found.datasets) == ids
        assert found.notes[0] == "omitted, because the catalogue lacks the figure: 1 dataset"
    fakes["d4rl"].packaged = [
        CatalogEntry("a-v0", action="discrete"), CatalogEntry("b-v0", action="continuous"),
    ]  # fmt: skip
    assert _ids(catalog.search("v0", settings, catalog.Bounds(action="discrete")).datasets) == [
        "d4rl:a-v0"
    ]
    found = catalog.search("d4rl", settings, limit=1)
    assert (_ids(found.datasets), found.notes) == (
        ["d4rl:a-v0"], ("the first 1 of 2 datasets; a higher limit shows more",),
    )  # fmt: skip
