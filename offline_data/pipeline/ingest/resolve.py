"""Resolve a request to a dataset on this disk or the build of one, and the errors for those that are neither."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from offline_data.base.config import ARGUMENT, CONFIG_FILE, Settings
from offline_data.base.errors import (
    NetworkError,
    NoNetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)
from offline_data.base.ids import SHARED, DatasetId, did_you_mean, parse_id
from offline_data.formats.base import NOT_TAKEN, UNVERSIONED, Release
from offline_data.formats.options import (
    ALL_SPLITS,
    Options,
    TextOptions,
    format_range,
    to_arguments,
)
from offline_data.formats.registry import (
    FolderOfDatasetsError,
    check_plain,
    get_source,
    source_names,
)
from offline_data.pipeline.ingest.build import Build, BuildJob, destination_of
from offline_data.pipeline.ingest.conversion import ConversionProcess
from offline_data.pipeline.ingest.raw import local_files, with_digests
from offline_data.store.library import (
    Entry,
    entry_at,
    find,
    has_manifest,
    how_to_get,
    list_datasets,
    newest,
    revisions,
)
from offline_data.store.manifest import Manifest
from offline_data.store.tokenizers import remember_tokenizer

_MOST_NAMED = 5


class SeveralSplitsError(UsageError):
    """Files with several splits, such as `train` and `val`, none of which was chosen."""

    def __init__(self, where: str, splits: tuple[str, ...]) -> None:
        self.where, self.splits = where, splits
        super().__init__(
            f"{where} has {len(splits)} splits: {', '.join(splits)}",
            hint=f"choose one: --split={splits[0]!r}; or all as one dataset: --split={ALL_SPLITS!r}",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.where, self.splits)


@contextmanager
def resolve(
    dataset: DatasetId,
    settings: Settings,
    options: Options,
    digests: Mapping[str, str] | None = None,
) -> Iterator[Entry | Build]:
    """Yield a dataset on this disk that satisfies the options, else its build, for which its source is asked.

    Errors of a block that builds it are those of `suggest_command`.
    """
    entry = None if options.force else on_disk(dataset, settings, options)
    if entry is not None:
        yield entry
        return
    with suggest_command(dataset, settings, options) as asking:
        yield ask_source(dataset, asking, options, digests)


def on_disk(dataset: DatasetId, settings: Settings, options: Options) -> Entry | None:
    """Find a dataset that satisfies the options under the root, else None; uses no network."""
    if dataset.revision:
        entry = find(settings.root, dataset.at(options.revision_of(dataset.revision)))
    elif options.whole and options.text is None:
        entry = find(settings.root, dataset, parts=dataset.source == "local")
    else:
        home = settings.root / dataset.folder
        entry = newest(revisions(home, f"*{options.revision_of('')}")[0])
    if entry is None or dataset.source == "local":
        return entry
    if not options.accept(entry.manifest):
        return None
    if dataset.revision or not str(entry.id.revision).startswith("local-"):
        return entry
    try:  # the source's own files on this machine may have changed since
        release = get_source(dataset.source).resolve(
            dataset.name, None, replace(settings, offline=True)
        )
    except OfflineDataError:  # they are gone: use the existing dataset
        return entry
    return entry if options.revision_of(release.revision) == entry.id.revision else None


def ask_source(
    dataset: DatasetId,
    settings: Settings,
    options: Options,
    digests: Mapping[str, str] | None = None,
) -> Build:
    """Return the build of a dataset; `IntegrityError` if its source lacks a file of `digests`."""
    source = get_source(dataset.source)
    release = source.resolve(dataset.name, dataset.revision, settings)
    release = with_digests(apply_options(options, release, dataset.source), digests or {})
    target = dataset.at(options.revision_of(release.revision))
    layout, destination = options.layout or "compact", destination_of(target, settings)
    return Build(release, BuildJob(target, source.name, layout, destination, options))


@contextmanager
def resolve_path(
    path: Path,
    name: str,
    source: str | None,
    settings: Settings,
    options: Options,
    *,
    copies: bool = True,
) -> Iterator[tuple[ConversionProcess, Build]]:
    """Yield a process for a path, or the only dataset in a folder, and the build of the dataset.

    `copies`: whether a dataset of which nothing changes keeps revision and layout.
    """
    dataset = new_id(name)
    check_plain(path)
    if source is not None and source not in source_names():
        get_source(source)  # raises
    if options.mapping is not None:
        if source not in {None, "files"}:
            raise UsageError(
                f"--mapping describes files of your own, and --from {source} is a format",
                hint="leave one of the two out",
            )
        source = "files"
    elif source is None and options.text is not None and not has_manifest(path):
        source = "text"
    with ExitStack() as stack:
        process = stack.enter_context(ConversionProcess(path))
        try:
            adapter, release = process.describe(source, dataset.name)
        except FolderOfDatasetsError as error:
            if len(error.found) > 1:
                raise
            ((path, source),) = error.found.items()
            process = stack.enter_context(ConversionProcess(path))
            adapter, release = process.describe(source, dataset.name)
        release = apply_options(options, release, adapter)
        options = release.options
        own = entry_at(path) if adapter == "local" else None
        copied = own if own and copies and changes_nothing(own.manifest, options) else None
        if path.resolve().parent == (settings.root / dataset.folder).resolve():
            release = replace(release, revision=path.resolve().name)  # rewritten in place
        elif copied is not None:
            release = replace(release, revision=copied.id.revision or UNVERSIONED)
        target = dataset.at(options.revision_of(release.revision))
        job = BuildJob(
            target,
            adapter,
            (options.layout or "compact") if copied is None else copied.manifest.layout,
            destination_of(target, settings),
            options,
            local_files(path),
            () if own is None else (own.manifest.id,),
        )
        yield process, Build(release, job, copied)


def new_id(name: str) -> DatasetId:
    """Return the id of a new dataset called `NAME` or `local:NAME`; raises `UsageError`."""
    dataset = parse_id(name if name.startswith("local:") else f"local:{name}")
    if dataset.revision:
        raise UsageError(
            f"{name!r} cannot be the name of a new dataset: its revision is that of the data",
            hint=f"choose a name without @, {dataset.name} for one",
        )
    return dataset


def changes_nothing(manifest: Manifest, options: Options) -> bool:
    """Return True if a dataset directory has all that is requested, so that a copy is enough."""
    if not options.whole or options.skip_bad_episodes or options.split is not None:
        return False
    return options.layout in {None, manifest.layout} and options.accept(manifest)


def apply_options(options: Options, release: Release, source: str) -> Release:
    """Return a release with options, see `Source.with_options`; raises `NotFoundError` for a split."""
    _check_split(release, source, options.split)
    options = replace(options, mapping=options.mapping or release.options.mapping)
    if any(getattr(options, name) for name in NOT_TAKEN):
        release = get_source(source).with_options(release, options)
    else:  # without the adapter, which needs numpy
        release = replace(release, options=options)
    if options.allow_changed:
        files = (
            replace(file, size=None, digest=None, accepts_changes=True) for file in release.files
        )
        release = replace(release, files=tuple(files))
    return release


def _check_split(release: Release, source: str, split: str | None) -> None:
    there, where = release.splits, str(release.local or release.name)
    if split is None and len(there) > 1:
        raise SeveralSplitsError(where, there)
    if split is not None and not there:
        raise UsageError(
            f"{where}, as files of {source}, has no separate splits",
            hint="leave --split out"
            + ("; a split of a download is part of its id" if release.local is None else ""),
        )
    if split not in {None, ALL_SPLITS, *there}:
        raise NotFoundError(
            f"{where} has no split {split!r}; it has {', '.join(there)}",
            hint=did_you_mean(str(split), there),
        )


def pinned_text(text: TextOptions | None, settings: Settings) -> TextOptions | None:
    """Return the options with the digest of the tokenizer's files.

    Another tokenizer of that name is refused later. The path of a local one is kept. Raises as `text.tokenizer.load_tokenizer`.
    """
    if text is None:
        return None
    pinned = get_source("text").pin_text(text, offline=settings.offline)
    if pinned.from_path and pinned.tokenizer_sha256:
        remember_tokenizer(settings.root, pinned.tokenizer_sha256, pinned.tokenizer)
    return pinned


@contextmanager
def suggest_command(dataset: DatasetId, settings: Settings, options: Options) -> Iterator[Settings]:
    """Add the dataset, and the command to run online, to an `OfflineError` of the block.

    The hint of any `NetworkError` has the nearest names if the name is in no catalogue. It is likely
    misspelt then, and the settings that this yields let a host be asked once, without retries.
    """
    near = _suggest_names(dataset, settings)
    once = replace(settings, transfer=replace(settings.transfer, tries=1))
    try:
        yield once if near else settings
    except OfflineError:
        command = online_command(dataset, settings, options)
        raise OfflineError(
            f"{_say_missing(dataset, options)}, and offline mode is on",
            hint=near or f"online: `{command}`; {offline_advice(settings)}",
        ) from None
    except NotFoundError as error:
        other = _suggest_tokens(dataset, settings, options)
        if other is None or dataset.source != "local":
            raise
        raise NotFoundError(_say_missing(dataset, options), hint=other) from error
    except NoNetworkError as error:
        hint = near or _suggest_datasets_here(settings) or str(error.shell_hint)
        if dataset.source == SHARED and dataset.name.startswith("http"):  # typed by the user
            hint = f"is the address right? {hint}"
        raise NoNetworkError(error.message, hint=hint) from None
    except NetworkError as error:
        if not near:
            raise
        hint = " ".join(filter(None, (near, error.shell_hint)))
        raise type(error)(error.message, hint=hint) from error


def missing_error(dataset: DatasetId, settings: Settings, options: Options) -> NotFoundError:
    """Return the error for a dataset that is not on this disk, where it may not be downloaded."""
    return NotFoundError(
        f"{_say_missing(dataset, options)} (looked in {settings.root})",
        hint=_suggest_names(dataset, settings)
        or _suggest_tokens(dataset, settings, options)
        or f"load it with download=True; {how_to_get(dataset)}",
    )


def online_command(dataset: DatasetId, settings: Settings, options: Options) -> str:
    """Return the shell command that downloads a dataset with these options.

    Example:
        >>> from offline_data.base.config import Settings
        >>> from offline_data.base.ids import parse_id
        >>> from offline_data.formats.options import Options
        >>> options = Options(episodes=(0, 10))
        >>> online_command(parse_id("d4rl:pen-human-v1"), Settings("/data"), options)
        'offline-data download d4rl:pen-human-v1 --episodes 0:10'
    """
    words = ["offline-data", "download", str(dataset)]
    if settings.origins.get("root") == ARGUMENT:
        words += ["--root", str(settings.root)]
    return shlex.join([*words, *to_arguments(options)])


def _say_missing(dataset: DatasetId, options: Options) -> str:
    if options.force:
        return f"{dataset} cannot be fetched again from this disk"
    if options.episodes:
        return f"Episodes {format_range(options.episodes)} of {dataset} are not on this disk"
    if options.only:
        return f"Features {options.only} of {dataset} are not on this disk"
    tokens = ", tokenized with these options," if options.text else ""
    return f"{dataset}{tokens} is not on this disk"


def _suggest_tokens(dataset: DatasetId, settings: Settings, options: Options) -> str | None:
    """Return a hint if a dataset is here, but its text was tokenized with other options."""
    here = options.text and find(settings.root, dataset)
    return (
        f"the one here was tokenized with others: `offline-data info {here.id}`" if here else None
    )


def _suggest_datasets_here(settings: Settings) -> str | None:
    ids = (one.id for one in list_datasets(settings.root))
    names = list(dict.fromkeys(f"{one.source}:{one.name}" for one in ids))
    if not names:
        return None
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (
        f"on this disk: {', '.join(names[:_MOST_NAMED])}{more} (`offline-data list`); "
        "OFFLINE_DATA_OFFLINE=1 or --offline asks no host"
    )


def _suggest_names(dataset: DatasetId, settings: Settings) -> str | None:
    known = known_names(dataset.source)
    if dataset.name not in known:
        here = (entry.id for entry in list_datasets(settings.root))
        known += [known_id.name for known_id in here if known_id.source == dataset.source]
    if dataset.name in known:
        return None
    return did_you_mean(dataset.name, known, count=3, shown=f"{dataset.source}:{{}}".format)


def offline_advice(settings: Settings) -> str:
    """Return what turned offline mode on, and how to turn it off."""
    origin = settings.origins.get("offline", ARGUMENT)
    if origin == ARGUMENT:
        return "leave out --offline where there is a network"
    if origin == CONFIG_FILE:
        place, switches = f"`offline` in {settings.config}", "OFFLINE_DATA_OFFLINE=0"
    else:
        place, switches = origin, " ".join(f"{name}=0" for name in origin.split(" and "))
    return f"offline mode is set by {place}; {switches} before a command turns it off"


def known_names(source: str) -> list[str]:
    """List the names in the catalogue of `source`, in its order, offline; raises `NotFoundError`.

    Example:
        >>> "pen-human-v1" in known_names("d4rl")
        True
    """
    return [entry.name for entry in get_source(source).catalog()]
