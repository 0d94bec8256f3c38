"""Options of text datasets: the form of rows, their tokens, and the storage of these."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping  # noqa: TC003 (`decode` reads annotations)
from dataclasses import asdict, dataclass, fields
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, get_args

from offline_data.decode import decode
from offline_data.errors import UsageError
from offline_data.ids import looks_like_path, unknown
from offline_data.strict_json import shown

Form: TypeAlias = Literal["text", "prompt", "pairs", "messages"]
"""Form of a row: one text; prompt and completion; prompt, chosen and rejected; a conversation."""

FORMS: tuple[Form, ...] = get_args(Form)

Eos: TypeAlias = Literal["auto", "yes", "no"]
"""Whether an end-of-text token is appended to documents."""

ROLES: dict[Form, tuple[str, ...]] = {
    "text": ("text",),
    "prompt": ("prompt", "completion"),
    "pairs": ("prompt", "chosen", "rejected"),
    "messages": ("messages",),
}
"""Roles of columns in each form; `score` (a number) may be added to each."""

MAX_LENGTH = 1 << 20
"""Greatest `max_length`."""

_PLACES = ("tokenizer", "tokenizer_revision")
"""Location of a tokenizer, in place of its identity."""


@dataclass(frozen=True)
class TextOptions:
    """Options of text datasets; see `offline_data.download`.

    Example:
        >>> TextOptions("tokenizer.json", "prompt", {"completion": "answer"}).column("completion")
        'answer'
    """

    tokenizer: str = ""
    """Name on the Hugging Face hub, a folder saved by `save_pretrained`, or a `tokenizer.json`."""
    form: Form | None = None
    """Form of a row; None: by the dataset's name (a preset) or the names of its columns."""
    columns: Mapping[str, str] | None = None
    """Column of each role, where it has another name: `{"completion": "answer"}`."""
    split: str = "train"
    """Split to read, as the dataset's card on the hub names it, else by the names of files. `all` or
    empty: all files. A single file is read as a whole."""
    max_length: int | None = None
    """Tokens of a document; what is longer is cut off at the end and marked `truncated`."""
    pad: bool = False
    """Whether a row of the dataset is a document of `max_length` tokens; else a row is a token, and
    an episode is a document."""
    separator: str | None = None
    """Text between prompt and completion; None: that of the preset, else nothing."""
    keep_text: bool = False
    """Whether the texts are stored, too; the words of all documents are then held in memory."""
    tokenizer_revision: str | None = None
    """Commit, branch or tag of a tokenizer on the hub."""
    tokenizer_sha256: str | None = None
    """Digest of the tokenizer, by which its content is known wherever it lies; see `pinned`."""
    eos: Eos | None = "auto"
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
        return decode(cls, {"eos": None, **value}, "text options")

    def given(self) -> dict[str, Any]:
        """Return `eos`, and those that are not the defaults, as `from_record` reads them."""
        known, defaults = self.to_json(), {field.name: field.default for field in fields(self)}
        return {k: v for k, v in known.items() if k == "eos" or v != defaults[k]}

    def arguments(self) -> list[str]:
        """Return them as arguments of the command line."""
        words = ["--tokenizer", self.tokenizer]
        for role, name in (self.columns or {}).items():
            words += ["--column", f"{role}={name}"]
        for field in fields(self):
            value = getattr(self, field.name)
            named = field.name in {"tokenizer", "columns", "tokenizer_sha256"}
            if named or value in (None, field.default):
                continue
            words.append(f"--{field.name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
        return words

    @property
    def digest(self) -> str:
        """Eight hex digits that differ between options; part of the revision of the dataset."""
        text = json.dumps(_content(self.to_json()), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def _content(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in JSON without the place of their tokenizer, which its digest identifies."""
    return {name: value for name, value in options.items() if name not in _PLACES}
