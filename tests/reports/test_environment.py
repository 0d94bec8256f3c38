"""Versions and settings for a bug report: complete, and without a secret."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar

import pytest

from offline_data.errors import MissingDependencyError
from offline_data.reports import environment

if TYPE_CHECKING:
    from offline_data.config import Settings
    from offline_data.sources.base import CatalogEntry


def test_versions_are_those_installed(settings: Settings) -> None:
    found = environment.environment(settings)
    assert found.version == version("offline-data")
    assert found.packages["numpy"] == version("numpy")
    assert "offline-data" not in found.packages
    assert found.free_bytes > 0


def test_it_says_whether_the_gather_is_compiled(settings: Settings) -> None:
    from offline_data.buffers import native

    assert environment.environment(settings).compiled_gather is (native.compiled is not None)


def test_no_secret_is_shown(settings: Settings) -> None:
    secret = replace(
        settings,
        hub_token="hf_hush",  # noqa: S106 - the point of the test
        hub_endpoint="https://me:hush@hub.example",
        mirrors=(("https://a.example/", "https://me:hush@b.example/"),),
    )
    shown = environment.environment(secret).settings
    assert "hush" not in json.dumps(shown, default=str)
    assert shown["hub_token"] == "set"  # noqa: S105 - what is shown of it
    assert shown["hub_endpoint"] == "https://***@hub.example"
    assert shown["mirrors"] == ["https://a.example/=https://***@b.example/"]


@dataclass
class Needy:
    """A source that needs one package that is here and one that is not."""

    name: str = "needy"
    title: str = "for this test"
    needs: tuple[str, ...] = ("numpy", "package_that_is_not_here")
    extra: str | None = "needy"
    entries: ClassVar[list[CatalogEntry]] = []

    def catalog(self) -> list[CatalogEntry]:
        return self.entries


def test_what_is_missing_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "source_names", lambda: ["needy"])
    monkeypatch.setattr(environment, "get_source", {"needy": Needy()}.get)
    (report,) = environment.source_reports()
    assert report.missing == ("package_that_is_not_here",)
    assert report.install == "pip install 'offline-data[needy]'"


def test_a_source_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Needy:
        raise MissingDependencyError("Source 'needy' cannot be imported", hint="pip install it")

    monkeypatch.setattr(environment, "source_names", lambda: ["needy"])
    monkeypatch.setattr(environment, "get_source", refuse)
    (report,) = environment.source_reports()
    assert (report.title, report.install) == ("Source 'needy' cannot be imported", "pip install it")
