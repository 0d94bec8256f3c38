"""Text: datasets of the Hugging Face hub, and the user's own files, as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError, OfflineError, UsageError
from offline_data.base.files import is_file, is_folder
from offline_data.base.ids import did_you_mean
from offline_data.fetch.hub import list_hub
from offline_data.formats.base import CatalogEntry, RawDataset, Release, Source
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.options import Options, TextOptions
from offline_data.raw.rows import suffix_of
from offline_data.text.dataset import TextDataset
from offline_data.text.forms import PRESETS, HubTextCatalog, Preset
from offline_data.text.splits import data_files, files_of_config, files_of_split
from offline_data.text.tokenizer import TOKENIZER_HINT, pin_tokenizer


class HubText(HubTextCatalog, Source):
    """Text datasets of the hub: `hf:OWNER/NAME`, or `hf:OWNER/NAME:CONFIG`."""

    takes = ("text",)

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """List the data files of a dataset at a commit; `with_options` chooses the split.

        Raises `NotFoundError` without such a dataset or data files, `FormatError` for a script,
        which is not run, and `OfflineError`, `NetworkError` or `AuthError` if the hub is not
        queried, or does not answer.
        """
        repository, _ = _parts(name)
        try:
            listing = list_hub(repository, "", revision, settings)
        except (NotFoundError, OfflineError) as error:
            near = did_you_mean(repository, PRESETS, shown="hf:{}".format)
            if repository not in PRESETS and near:
                raise type(error)(error.message, hint=near) from error
            raise
        data = set(data_files(file.path for file in listing.files))
        files = [file for file in listing.files if file.path in data]
        script = f"{repository.rpartition('/')[2]}.py"
        if not files:
            if any(file.path == script for file in listing.files):
                raise FormatError(
                    f"hf:{repository} is a script ({script}), which is not run",
                    hint="use a version of it with Parquet files: on the hub, branch refs/convert/parquet",
                )
            raise NotFoundError(f"hf:{repository} has no text, Parquet, Arrow, JSON or CSV files")
        return Release(
            name,
            listing.commit,
            tuple(files),
            opening=(),  # without a tokenizer, nothing is fetched
            card=listing.card,
            licence=listing.licence,
        )

    def with_options(self, release: Release, options: Options) -> Release:
        """Return the release with the files of its configuration and of the split of `options.text`.

        Raises `NotFoundError`, and `FormatError` for a card that cannot be read; see
        `offline_data.text.splits`.
        """
        release = super().with_options(release, options)
        if options.text is None:
            return release
        repository, config = _parts(release.name)
        preset = PRESETS.get(repository, Preset("text", {}))
        split = preset.splits.get(options.text.split, options.text.split)
        where = f"hf:{repository}"
        paths = [file.path for file in release.files]
        paths, splits = files_of_config(paths, release.card, config or preset.config, where)
        known = {file.path: file for file in release.files}
        files = tuple(known[path] for path in files_of_split(paths, splits, split, where))
        return replace(release, files=files, opening=(files[0].path,), card={})

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open the files; raises `UsageError` if no tokenizer is named."""
        files = [(file.path, file.size) for file in release.files]
        return _open_files(raw, files, release, _parts(release.name)[0])


class TextFiles(Source):
    """Text files of the user, read with `convert --from text`."""

    name = "text"
    title = "Text files here: Parquet, Arrow, JSON lines, CSV or plain, tokenized"
    needs = ("tokenizers",)
    extra = "rlhf"
    action = "discrete"
    takes = ("text",)

    def catalog(self) -> Sequence[CatalogEntry]:
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
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

    def pin_text(self, options: TextOptions, *, offline: bool) -> TextOptions:
        """Load the tokenizer once; raises as `load_tokenizer`."""
        return pin_tokenizer(options, offline=offline)

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open the files; raises `UsageError` if no tokenizer is named."""
        if release.options.text is None or not release.options.text.tokenizer:
            raise UsageError(
                f"{raw} is text, which must be tokenized, and no tokenizer was named",
                hint=TOKENIZER_HINT,
            )
        folder = raw if is_folder(raw) else raw.parent
        names = [file.relative_to(folder).as_posix() for file in _files_at(raw)]
        if is_folder(raw):
            names = files_of_split(names, None, release.options.text.split, str(raw))
        return _open_files(
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


def _open_files(
    folder: Path, files: Sequence[tuple[str, int | None]], release: Release, name: str
) -> TextDataset:
    options = release.options.text or TextOptions()
    return TextDataset(
        folder,
        files,
        options,
        name,
        licence=release.licence,
        skip_bad=release.options.skip_bad_episodes,
    )


def _files_at(path: Path) -> list[Path]:
    if is_file(path):
        return [path] if suffix_of(path.name) else []
    found = (file for file in path.rglob("*") if is_file(file)) if is_folder(path) else ()
    return [
        path / name for name in data_files(sorted(f.relative_to(path).as_posix() for f in found))
    ]
