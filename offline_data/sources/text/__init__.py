"""Text: datasets of the Hugging Face hub, and the user's own files, as tokens."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from offline_data.errors import FormatError, NotFoundError, OfflineError
from offline_data.fetch.hub import list_hub
from offline_data.files import is_file, is_folder
from offline_data.ids import nearest
from offline_data.readers.text_rows import suffix_of
from offline_data.sources.base import CatalogEntry, Release, Source
from offline_data.sources.fingerprint import fingerprint
from offline_data.sources.text.dataset import TextDataset
from offline_data.sources.text.forms import PRESETS
from offline_data.sources.text_options import TextOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.fetch.files import RemoteFile
    from offline_data.sources.base import RawDataset

_SPLIT_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "validation": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in file names that mean a split; other splits have their own name only."""


class HubText(Source):
    """Text datasets of the hub: `hf:OWNER/NAME`, or `hf:OWNER/NAME:CONFIG`."""

    name = "hf"
    title = "Hugging Face hub: text for language models, tokenized"
    needs = ("pyarrow", "tokenizers")
    extra = "rlhf"
    action = "discrete"

    def catalog(self) -> Sequence[CatalogEntry]:
        """List the datasets with presets; any other text dataset of the hub can be named, too."""
        return [
            CatalogEntry(name, summary=f"{one.form}: {one.summary}")
            for name, one in sorted(PRESETS.items())
        ]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """List the data files of a dataset at a commit; the split is chosen by `with_text`.

        Raises:
            NotFoundError: No such dataset, or it has no data files.
            FormatError: It is a script, which is not run.
            OfflineError, NetworkError, AuthError: The hub is not queried, or does not answer.
        """
        repository, config = _parts(name)
        try:
            listing = list_hub(repository, "", revision, settings)
        except (NotFoundError, OfflineError) as error:
            near = nearest(repository, PRESETS)
            if repository not in PRESETS and near:
                raise type(error)(error.message, hint=f"did you mean hf:{near[0]}?") from error
            raise
        files = [file for file in listing.files if suffix_of(file.path)]
        script = f"{repository.rpartition('/')[2]}.py"
        if not files:
            if any(file.path == script for file in listing.files):
                raise FormatError(
                    f"hf:{repository} is a script ({script}), which is not run",
                    hint="use a version of it with Parquet files: on the hub, branch refs/convert/parquet",
                )
            raise NotFoundError(f"hf:{repository} has no text, Parquet, Arrow, JSON or CSV files")
        preset = PRESETS.get(repository)
        config = config or (preset.config if preset else "")
        files = _of_config(files, config, repository)
        return Release(name, listing.commit, tuple(files))

    def with_text(self, release: Release, options: TextOptions) -> Release:
        """Return the release of one split, with text options."""
        kept = _of_split(release.files, options.split, self.name)
        return replace(release, files=tuple(kept), opening=(), text=options)

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open the files; raises `FormatError` if no tokenizer is named."""
        release = release if release.text else self.with_text(release, TextOptions())
        files = [(file.path, file.size) for file in release.files]
        return _opened(raw, files, release, _parts(release.name)[0])


class TextFiles(Source):
    """Text files of the user, read with `convert --from text`."""

    name = "text"
    title = "Text files here: Parquet, Arrow, JSON lines, CSV or plain, tokenized"
    needs = ("tokenizers",)
    extra = "rlhf"
    action = "discrete"

    def catalog(self) -> Sequence[CatalogEntry]:
        """Return nothing: there is no list."""
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Raise `NotFoundError`: such datasets are converted, not downloaded."""
        del revision, settings
        raise NotFoundError(
            f"There is no text:{name}: text files are converted",
            hint=f"`offline-data convert PATH {name} --from text --tokenizer NAME`",
        )

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a file, or the data files of a folder and its subfolders; raises `FormatError`."""
        files = _files_at(path)
        if not files:
            raise FormatError(
                f"{path} has no text: expected .parquet, .arrow, .jsonl, .json, .csv, .tsv or .txt"
            )
        return Release(name, fingerprint(path, files), local=path)

    def with_text(self, release: Release, options: TextOptions) -> Release:
        """Return the release with text options."""
        return replace(release, text=options)

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open the files; raises `FormatError` if no tokenizer is named."""
        if release.text is None or not release.text.tokenizer:
            raise FormatError(
                f"{raw} is text, which must be tokenized, and no tokenizer was named",
                hint="add --tokenizer NAME|FILE, for example --tokenizer gpt2",
            )
        folder = raw if is_folder(raw) else raw.parent
        names = [file.relative_to(folder).as_posix() for file in _files_at(raw)]
        return _opened(
            folder, [(name, (folder / name).stat().st_size) for name in names], release, ""
        )


def _parts(name: str) -> tuple[str, str]:
    """Return the repository and the configuration of a name; raises `NotFoundError`."""
    owner, _, rest = name.partition("/")
    repository, _, config = rest.partition("/")
    if not repository or "/" in config:
        raise NotFoundError(
            f"There is no hf:{name}", hint="ids look like hf:openai/gsm8k or hf:OWNER/NAME:CONFIG"
        )
    return f"{owner}/{repository}", config


def _opened(
    folder: Path, files: Sequence[tuple[str, int | None]], release: Release, name: str
) -> TextDataset:
    options = release.text or TextOptions()
    return TextDataset(folder, files, options, name, skip_bad=release.skip_bad_episodes)


def _files_at(path: Path) -> list[Path]:
    if is_file(path):
        return [path] if suffix_of(path.name) else []
    found = path.rglob("*") if is_folder(path) else ()
    return sorted(file for file in found if suffix_of(file.name) and is_file(file))


def _of_config(files: Sequence[RemoteFile], config: str, repository: str) -> list[RemoteFile]:
    """Return the files of a configuration: those in its folder, or whose names begin with it."""
    if not config:
        return list(files)
    kept = [
        file
        for file in files
        if config in file.path.split("/")[:-1] or file.path.startswith((f"{config}-", f"{config}."))
    ]
    if not kept:
        folders = sorted({file.path.split("/")[0] for file in files if "/" in file.path})
        raise NotFoundError(
            f"hf:{repository} has no configuration {config!r}",
            hint=f"its folders are {', '.join(folders[:8])}" if folders else None,
        )
    return kept


def _of_split(files: Iterable[RemoteFile], split: str, where: str) -> list[RemoteFile]:
    """Return the files of a split; all, if no name tells any split."""
    every = list(files)
    if not split:
        return every
    known = {word for words in _SPLIT_WORDS.values() for word in words} | {split}

    def words(path: str) -> set[str]:
        return set(re.split(r"[^A-Za-z0-9]+", path.lower())) | set(re.split(r"[/.-]", path))

    named = [file for file in every if words(file.path) & known]
    kept = [file for file in named if words(file.path) & {*_SPLIT_WORDS.get(split, ()), split}]
    if kept or not named:
        return kept or every
    there = sorted({word for file in named for word in words(file.path) & known})
    raise NotFoundError(
        f"{where} has no split {split!r}; its file names have: {', '.join(there)}",
        hint=f"--split {there[0]}",
    )
