"""Options of `download` and `convert`, each declared once.

The metadata of a field says what it is on the command line, and whether `datasets.toml` and its lock,
and manifests have it. A new option is a field here, and a parameter of `offline_data.download`,
`convert`, or both.
"""

# ruff: noqa: RUF009 (`_option` returns a field)
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from offline_data.base.errors import UsageError
from offline_data.base.ids import looks_like_path, unknown
from offline_data.base.json import shown
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import Autoreset
from offline_data.formats.files.mapping import FileMapping, read_mapping
from offline_data.store.layout import DEFAULT_AUDIT, AuditMode, LayoutName, parse_audit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offline_data.store.manifest import Manifest

ALL_SPLITS = "all"  # all splits of a dataset, one after the other

Range: TypeAlias = tuple[int | None, int | None]  # half-open; from the first, to the last

Alignment: TypeAlias = Literal["raw", "regenerated"]  # observations after their actions, or before

ImageForm: TypeAlias = Literal["encoded", "raw"]
VideoForm: TypeAlias = Literal["keep", "png", "raw", "skip"]

Form: TypeAlias = Literal["text", "prompt", "pairs", "messages"]
"""Form of a row: one text; prompt and completion; prompt, chosen and rejected; a conversation."""

FORMS: tuple[Form, ...] = get_args(Form)

Eos: TypeAlias = Literal["auto", "yes", "no"]  # whether documents end with the end-of-text token

ROLES: dict[Form, tuple[str, ...]] = {  # of columns; `score` (a number) may be added to each
    "text": ("text",),
    "prompt": ("prompt", "completion"),
    "pairs": ("prompt", "chosen", "rejected"),
    "messages": ("messages",),
}

MAX_LENGTH = 1 << 20  # greatest `max_length`

_MOST_DIGITS = 18  # digits of an episode's number: more do not fit into int64


class Option(NamedTuple):  # made faster than a dataclass, for `--help`
    """An option as the command line, files and manifests have it."""

    help: str  # its text in `--help`
    metavar: str | None = None  # its value in `--help`; None: no value, or one of several words
    parse: Callable[[Any], Any] | None = None  # of a user's text; None: the field's value
    flag: str | None = None  # name on the command line, if not the field's
    least: int | None = None  # smallest value
    only: Literal["download", "convert"] | None = None  # the only command with it; None: both
    help_of_convert: str | None = None  # its text in `convert --help`, if it is another one
    sources: tuple[str, ...] = ()  # that it is for; empty: any
    below: str | None = None  # option that it follows in `--help`; None: that of the field before
    place: int | None = None
    """Its place in `datasets.lock`, whose text stays the same between versions, and in messages
    about `datasets.toml`; None: it is in neither, since it does not decide what is on the disk."""
    recorded: bool = True  # whether the manifest records it
    suggested: bool = True  # whether commands that messages suggest have it


def _option(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"option": Option(text, **more)})


_text_option = partial(_option, sources=("hf", "text"))


def options_of(table: type | Options | TextOptions) -> dict[str, Option]:
    """Return the options of `Options` or `TextOptions` by field, in the order of fields."""
    found = {each.name: each.metadata.get("option") for each in fields(table)}
    return {name: option for name, option in found.items() if option is not None}


def parse_range(text: str, flag: str = "--episodes") -> Range:
    """Parse `A:B`, where either side may be omitted; raises `UsageError` naming the option."""
    first, colon, stop = text.partition(":")
    sides = [side.strip() for side in (first, stop)]
    given = f"{flag} is {text[:40]!r}"
    if not colon or not all(re.fullmatch("[0-9]*", side) for side in sides):
        raise UsageError(f"{given}; expected A:B", hint=f"{flag} 0:10 takes the first ten")
    digits = max(map(len, sides))
    if digits > _MOST_DIGITS:
        raise UsageError(
            f"{given}; a number of {digits} digits is too large: expected at most {_MOST_DIGITS}",
            hint="leave B out to take all from A on",
        )
    begin, end = (int(side) if side else None for side in sides)
    return begin, end


def names_in(text: str) -> list[str]:
    """Return the names of a list with commas.

    Example:
        >>> names_in("observation.state, observation.images.top")
        ['observation.state', 'observation.images.top']
    """
    return [name.strip() for name in text.split(",")]


def format_range(given: Range) -> str:
    """Return a range in the form that `parse_range` reads.

    Example:
        >>> format_range((10, None))
        '10:'
    """
    return ":".join("" if end is None else str(end) for end in given)


def _parse_columns(given: Sequence[str]) -> dict[str, str]:
    columns = {}
    for word in given:
        role, equals, name = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f"--column is {word!r}; expected ROLE=NAME, as in --column prompt=question"
            )
        columns[role] = name
    return columns


def to_arguments(options: Options | TextOptions) -> list[str]:
    """Return the options that are not the defaults as arguments of the command line."""
    words: list[str] = []
    for name, option in options_of(options).items():
        value = getattr(options, name)
        if isinstance(value, TextOptions):
            words += to_arguments(value)
        elif option.suggested and value is not None and value != getattr(type(options), name):
            flag = option.flag or f"--{name.replace('_', '-')}"
            if isinstance(value, Mapping):
                words += [word for role in value for word in (flag, f"{role}={value[role]}")]
            else:
                text = format_range(value) if isinstance(value, tuple) else str(value)
                words += [flag] if value is True else [flag, text]
    return words


_PLACES = ("tokenizer", "tokenizer_revision")  # location of a tokenizer, not its identity


@pickled_by_name
@dataclass(frozen=True)
class TextOptions:
    """Options of text datasets; see `offline_data.download`.

    Example:
        >>> TextOptions("tokenizer.json", "prompt", {"completion": "answer"}).column("completion")
        'answer'
    """

    tokenizer: str = _text_option(
        "",
        "Tokenizer: a name on the Hugging Face hub, a folder, or a tokenizer.json.",
        metavar="NAME|PATH",
    )
    """Name on the Hugging Face hub, a folder saved by `save_pretrained`, or a `tokenizer.json`."""
    form: Form | None = _text_option(
        None,
        "Form of a row. text: one text; prompt: prompt and completion; pairs: prompt, chosen and "
        "rejected; messages: a conversation. (default: by the dataset and its columns)",
    )
    """Form of a row; None: by the dataset's name (a preset) or the names of its columns."""
    columns: Mapping[str, str] | None = _text_option(
        None,
        "Column of a role: text, prompt, completion, chosen, rejected, messages or score. May be "
        "repeated.",
        metavar="ROLE=NAME",
        parse=_parse_columns,
        flag="--column",
    )
    """Column of each role, where it has another name: `{"completion": "answer"}`."""
    split: str = _text_option(
        "train", "Split to read. (default: train)", metavar="NAME|all", only="download"
    )
    """Split to read, as the dataset's card on the hub names it, else by the names of files. `all` or
    empty: all files. A single file is read as a whole."""
    max_length: int | None = _text_option(
        None, "Truncate documents after N tokens. (default: keep all)", metavar="N", least=1
    )
    """Tokens of a document; what is longer is cut off at the end and marked `truncated`."""
    pad: bool = _text_option(
        False,
        "Store each document as a row of --max-length tokens. (default: a row is a token)",
    )
    """Whether a row of the dataset is a document of `max_length` tokens; else a row is a token, and
    an episode is a document."""
    separator: str | None = _text_option(
        None, "Text between prompt and completion. (default: none)", metavar="TEXT"
    )
    """Text between prompt and completion; None: that of the preset, else nothing."""
    keep_text: bool = _text_option(False, "Store the texts as well.")
    """Whether the texts are stored, too; the words of all documents are then held in memory."""
    tokenizer_revision: str | None = _text_option(
        None, "Commit, branch or tag of a tokenizer on the hub.", metavar="REV", below="tokenizer"
    )
    """Commit, branch or tag of a tokenizer on the hub."""
    tokenizer_sha256: str | None = None
    """Digest of the tokenizer, by which its content is known wherever it lies; see `pinned`."""
    eos: Eos | None = _text_option(
        "auto",
        "Append the tokenizer's end-of-text token to each document. auto: if it has one and does not "
        "append it itself, but not to conversations. Truncated documents get none. (default: auto)",
        below="separator",
    )
    """Whether the tokenizer's end-of-text token is appended to each document. `auto`: if it names one
    and does not append it by itself, but not to conversations, which the chat template ends. Documents
    that are cut off have no end. None, in records only: nothing is appended, as in datasets that were
    made before there was this option."""

    def __post_init__(self) -> None:
        if self.eos not in {None, *get_args(Eos)}:
            raise UsageError(
                f"eos is {shown(self.eos)}; expected one of {', '.join(get_args(Eos))}"
            )
        if self.form is not None and self.form not in FORMS:
            raise UsageError(f"Form is {self.form!r}; expected one of {', '.join(FORMS)}")
        if self.max_length is not None and not 1 <= self.max_length <= MAX_LENGTH:
            raise UsageError(f"max_length is {self.max_length}; expected 1 to {MAX_LENGTH:,}")
        if self.pad and self.max_length is None:
            raise UsageError("Padded rows need a length", hint="add --max-length N")
        digest = self.tokenizer_sha256
        if digest is not None and not re.fullmatch("[0-9a-f]{64}", digest):
            raise UsageError(f"tokenizer_sha256 is {shown(digest)}; expected 64 hex digits")
        roles = {*sum(ROLES.values(), ()), "score"}
        for role in self.columns or {}:
            if role not in roles:
                raise unknown(UsageError, "There is no role", role, sorted(roles))

    def column(self, role: str) -> str:
        """Return the name of the column with a role."""
        return (self.columns or {}).get(role, role)

    def to_json(self) -> dict[str, Any]:
        """Return them as a plan of a conversion has them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def recorded(self) -> dict[str, Any]:
        """Return them as the manifest has them: a tokenizer without the folder that it lies in."""
        name = PurePath(self.tokenizer).name if self.from_path else self.tokenizer
        return {**self.to_json(), "tokenizer": name}

    def are_recorded_as(self, recorded: Any) -> bool:
        """Return True if `recorded` of a manifest are these, wherever the tokenizer was."""
        return isinstance(recorded, dict) and _content(recorded) == _content(self.to_json())

    @property
    def from_path(self) -> bool:
        """Whether the tokenizer is a file or folder of this machine, not a name on the hub."""
        return looks_like_path(self.tokenizer) or self.tokenizer.endswith(".json")

    @classmethod
    def from_record(cls, value: Mapping[str, Any]) -> TextOptions:
        """Read what `to_json` returned of a manifest, plan or lock file; raises `FormatError`.

        Without `eos`, nothing was appended.
        """
        from offline_data.base.decode import decode  # not needed for `--help`

        return decode(cls, {"eos": None, **value}, "text options")

    def to_record(self) -> dict[str, Any]:
        """Return `eos`, and those that are not the defaults, as `from_record` reads them."""
        known, defaults = self.to_json(), {field.name: field.default for field in fields(self)}
        return {k: v for k, v in known.items() if k == "eos" or v != defaults[k]}

    @property
    def digest(self) -> str:
        """Eight hex digits that differ between options; part of the revision of the dataset."""
        return _digest(_content(self.to_json()))


def _digest(value: Any) -> str:
    import hashlib  # slow to import, and not needed for `--help`

    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _content(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in JSON without the place of their tokenizer, which its digest identifies."""
    return {name: value for name, value in options.items() if name not in _PLACES}


@pickled_by_name
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `download` and `convert`; see `offline_data.download`."""

    layout: LayoutName | None = _option(
        None,
        "Storage layout. compact stores each observation once; ted writes one file per feature, `next` "
        "included, which TensorDict.load_memmap opens. (default: compact)",
        place=1,
        recorded=False,
    )
    """None: that of an existing dataset, `compact` for a new one."""
    episodes: Range | None = _option(
        None,
        "Only episodes A to B - 1, counted from 0. 0:10 takes the first ten.",
        metavar="A:B",
        parse=parse_range,
        place=2,
    )
    force: bool = _option(
        False,
        "Download and convert again, replacing the dataset.",
        help_of_convert="Replace local:NAME if it exists.",
        recorded=False,
    )
    raw_only: bool = _option(
        False,
        "Download the raw files without converting them.",
        only="download",
        recorded=False,
    )
    """For `fetch_raw`; `download` converts in any case."""
    keep_raw: bool = _option(False, "Keep the raw files after conversion.", only="download")
    allow_changed: bool = _option(
        False,
        "Accept raw files whose size or checksum is not as published.",
        only="download",
        place=7,
    )
    keep_episodes: bool = _option(
        False,
        "Keep episodes whole where a next observation differs from the next row, and store both. "
        "(default: end the episode there, truncated)",
        place=5,
    )  # with False an existing dataset of either kind is accepted
    skip_bad_episodes: bool = _option(
        False,
        "Skip episodes that cannot be read, and list them in the manifest. (default: fail)",
        place=6,
    )  # an existing dataset of either kind is accepted
    skip_bad_features: bool = _option(
        False,
        "Leave out infos that differ in shape or type between episodes, with a note. (default: fail)",
        sources=("minari",),
        place=11,
    )  # an existing dataset of either kind is accepted
    checkpoints: Range | None = _option(
        None,
        "Only checkpoints A to B - 1, counted from 0.",
        metavar="A:B",
        sources=("atari_dqn",),
        parse=partial(parse_range, flag="--checkpoints"),
        place=3,
    )
    images: ImageForm | None = _option(
        None,
        "How to store images. encoded keeps the JPEG or PNG files of the source and decodes them when "
        "sampled; raw stores pixels. (default: as in the source)",
        place=4,
    )  # None: as `encoded`, and an existing dataset of either kind is accepted
    video: VideoForm | None = _option(
        None,
        "How to store videos. keep: keep the mp4 files and decode frames when sampled; png: store "
        "each frame as a PNG image; raw: store pixels; skip: omit videos. (default: keep)",
        sources=("lerobot",),
        place=9,
    )
    """None: as `keep`, and an existing dataset of any kind is accepted."""
    only: str | None = _option(
        None,
        "Only these features, such as observation.state,observation.images. Actions, rewards, ends "
        "and tasks are always included.",
        sources=("lerobot",),
        metavar="NAME,NAME",
        place=10,
    )
    text: TextOptions | None = _option(None, "", place=8)
    """None: not text, and an existing dataset of any kind is accepted."""
    split: str | None = _option(
        None,
        "Split to read, if there are several. all reads them as one dataset. (default: ask; for "
        "text: train)",
        metavar="NAME|all",
        only="convert",
    )
    """Not for text, which has its own."""
    alignment: Alignment | None = _option(
        None,
        "When observations were recorded. raw: after the action of their row, as LIBERO's script "
        "does; regenerated: before it. (default: detected from the movements)",
        sources=("libero",),
        only="convert",
    )
    autoreset: Autoreset | None = _option(
        None,
        "Mode of the vector environment that recorded a flat file. next_step: drop the row of each "
        "reset; same_step: final observations are unknown. (default: all rows are steps)",
        only="convert",
    )
    mapping: FileMapping | None = _option(
        None,
        "Read PATH by this mapping. It names the array of each feature and the ends of episodes; "
        "--inspect proposes one.",
        metavar="FILE.toml",
        parse=read_mapping,
        only="convert",
        suggested=False,
    )
    """None: PATH has the format of a source."""
    strict: bool = _option(
        False,
        "Fail if a field of the source cannot be stored. (default: drop and report it)",
        suggested=False,
    )
    audit: AuditMode = _option(
        DEFAULT_AUDIT,
        "Rows to read back and compare with the source. auto: all rows; with text, encoded images "
        "or --layout ted, all of the first GiB and 1 % of the rest.",
        metavar="auto|all|FRACTION|none",
        parse=parse_audit,
        suggested=False,
    )

    def __post_init__(self) -> None:
        for name in ("episodes", "checkpoints"):
            given = getattr(self, name)
            if not (given is None or (isinstance(given, (tuple, list)) and len(given) == 2)):
                hint = f"--{name} 0:10 takes the first ten"
                raise UsageError(f"{name} is {given!r}; expected a pair of numbers", hint=hint)
            first, stop = given or (None, None)
            if (first or 0) < 0 or (stop is not None and stop <= (first or 0)):
                raise UsageError(
                    f"{name.capitalize()} {first or 0}:{stop} is not a range; expected 0 <= A < B, "
                    f"as in --{name} 0:10"
                )

        parse_audit(str(self.audit))
        for name, kind in (("layout", LayoutName), ("images", ImageForm), ("video", VideoForm)):
            if (word := getattr(self, name)) not in {None, *get_args(kind)}:
                raise UsageError(f"{name} is {word!r}; expected one of {', '.join(get_args(kind))}")

    def revision_of(self, revision: str) -> str:
        """Return the revision to write, which differs for a range of episodes or checkpoints.

        Example:
            >>> Options(episodes=(0, 10)).revision_of("3f2a")
            '3f2a+episodes-0-10'
        """
        for name, given in (("checkpoints", self.checkpoints), ("episodes", self.episodes)):
            if given is not None:
                first, stop = given
                revision += f"+{name}-{first or 0}-{'end' if stop is None else stop}"
        if self.split not in {None, ALL_SPLITS}:
            revision += f"+split-{self.split}"
        if self.only is not None:
            revision += f"+only-{_digest(sorted(set(names_in(self.only))))}"
        if self.mapping is not None:
            revision += f"+mapping-{self.mapping.digest}"
        return revision if self.text is None else f"{revision}+text-{self.text.digest}"

    @property
    def whole(self) -> bool:
        return self.episodes is None and self.checkpoints is None and self.only is None

    def accept(self, manifest: Manifest) -> bool:
        """Return True if an existing dataset has the requested episodes, images and videos."""
        recorded = manifest.converter.get("options") or {}
        return (bool(recorded.get("keep_episodes")) or not self.keep_episodes) and (
            self.images in {None, recorded.get("images") or "encoded"}
            and self.video in {None, video_kind(manifest)}
            and self.alignment in {None, recorded.get("alignment")}
            and self.autoreset in {None, recorded.get("autoreset")}
            and (self.text is None or self.text.are_recorded_as(recorded.get("text")))
        )

    def recorded(self) -> dict[str, Any]:
        found = {n: getattr(self, n) for n, option in options_of(self).items() if option.recorded}
        lists = {n: list(value) for n, value in found.items() if isinstance(value, tuple)}
        mapping = self.mapping and self.mapping.to_json()
        text = self.text.recorded() if self.text else None
        return {**found, **lists, "mapping": mapping, "text": text}

    def saved(self) -> dict[str, Any]:
        """Return the options that are not the defaults, as `datasets.toml` and its lock have them.

        Example:
            >>> Options(episodes=(0, 10), audit="all").saved()
            {'episodes': '0:10'}
        """
        given = {name: getattr(self, name) for name in SAVED}
        given["text"] = self.text and self.text.to_record()
        return {
            name: format_range(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if value
        }


def video_kind(manifest: Manifest) -> str:
    """Return how a dataset has its videos: `keep`, `png`, `raw` or `skip`."""
    # Those of before there was `keep` are `png`, and state nothing.
    recorded = (manifest.converter.get("options") or {}).get("video")
    leaves = [leaf for table in manifest.tables.values() for leaf in table.leaves]
    kept = any(leaf.encoding == "video" for leaf in leaves)
    return str(recorded or ("keep" if kept else "png"))


_PLACES_OF = {name: option.place for name, option in options_of(Options).items() if option.place}
SAVED = tuple(sorted(_PLACES_OF, key=_PLACES_OF.__getitem__))
"""Options that decide what is on the disk, and that the files of a project have."""
