"""Fast tokenizers from a file, a folder or the hub; the only file that imports them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import (
    FormatError,
    MissingDependencyError,
    NetworkError,
    NoNetworkError,
    NotFoundError,
    UsageError,
)
from offline_data.base.ids import looks_like_path
from offline_data.base.json import read_whole, shown
from offline_data.fetch.hub import require_network
from offline_data.formats.options import Eos, TextOptions
from offline_data.pipeline.jobs.processes import Child, ChildDiedError
from offline_data.pipeline.jobs.processes.child import limit_resources
from offline_data.pipeline.jobs.processes.protocol import pack_importable
from offline_data.raw.rows import MAX_LINE

TOKENIZER_HINT = (  # hint where no tokenizer was named
    "name one on the hub, or a file: --tokenizer gpt2; in datasets.toml, "
    'text = { tokenizer = "gpt2" }'
)

_PADS = ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>", "</s>")  # pad where a tokenizer names none

_MARKS = {  # usual names of tokens that mark beginning, end and padding, by role
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "pad": _PADS[:3],
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
}

_MAX_FILE = 256 << 20  # bytes of the largest `tokenizer.json` that is read

_MOST_ID = np.iinfo(np.int32).max

_LOAD_LIMITS = (4 << 30, 300.0)  # bytes of memory and seconds of processor time to load a tokenizer

CHAT_LIMITS = (2 << 30, 30.0)  # the same to apply a chat template to the rows that are read at once

_ENCODE_LIMITS = (2 << 30, 60.0)  # the same to tokenize texts, without what each character adds:
_BYTES_PER_CHARACTER, _CHARACTERS_PER_SECOND = 256, 20_000

_PANIC = "PanicException"  # a panic in Rust, for a damaged tokenizer; not an `Exception`


@dataclass(frozen=True)
class EncodedTexts:
    """Tokens of some documents, laid end to end."""

    ids: NDArray[np.int32]  # `[sum of lengths]`
    lengths: NDArray[np.int64]  # `[n]` tokens of each document, at most `max_length`
    cut: NDArray[np.bool_]  # `[n]` whether tokens were cut off


class Tokenizer:
    """A fast tokenizer and what the manifest says of it.

    `backend` is a `tokenizers.Tokenizer`, `chat` one of `transformers` with a chat template, if
    there is one; `pad` the token id that pads, by default one of the usual tokens, or 0; `about`
    name and revision, for the manifest.
    """

    def __init__(
        self, backend: Any, chat: Any = None, pad: int | None = None, about: Mapping[str, Any] = {}
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend, self._chat = backend, chat
        usual_pads = (backend.token_to_id(token) for token in _PADS)
        usual_pad = next((one for one in usual_pads if one is not None), 0)
        self.pad: int = usual_pad if pad is None else pad
        self.special = frozenset(
            token.content for token in backend.get_added_tokens_decoder().values() if token.special
        )
        self.before, self.after = _added_tokens(backend)  # token ids added around each text
        marks = self._marks(chat)
        if max(self.pad, *marks.values(), 0) > _MOST_ID:
            raise FormatError(f"token ids beyond {_MOST_ID:,}")
        content = hashlib.sha256(backend.to_str().encode())
        # without the settings that are next to `tokenizer.json`, as earlier versions had it
        self.file_sha256 = content.hexdigest()
        settings = (self.pad, marks, getattr(chat, "chat_template", None) or None)
        if settings != (usual_pad, self._marks(), None):
            content.update(json.dumps(settings, sort_keys=True).encode())
        self.about = {
            **about,
            "sha256": content.hexdigest(),
            "vocabulary": backend.get_vocab_size(with_added_tokens=True),
            "pad": self.pad,
            "special": marks,
            "chat": bool(chat is not None and chat.chat_template),
        }

    def _marks(self, chat: Any = None) -> dict[str, int]:
        """Return the token ids of the roles in `_MARKS`: as `chat` names them, else by usual names."""
        found: dict[str, int] = {}
        for role, usual in _MARKS.items():
            names = [name for name in usual if name in self.special]
            named = getattr(chat, f"{role}_token", None)
            ids = (self._backend.token_to_id(str(name)) for name in [named or "", *names])
            known = next((one for one in ids if one is not None), None)
            if known is not None:
                found[role] = known
        return found

    def encode(
        self, texts: Sequence[str], max_length: int | None = None, *, special: bool = True
    ) -> EncodedTexts:
        """Tokenize texts on all cores, with special tokens if `special`.

        Keeps the first `max_length` tokens of each, with the special ones that the tokenizer adds;
        None: all. Raises `UsageError` if special tokens alone fill `max_length`, `FormatError` if a
        text is not Unicode (a lone surrogate), or the tokenizer fails on one.
        """
        added = self._backend.num_special_tokens_to_add(is_pair=False) if special else 0
        if max_length is not None and max_length <= added:
            raise UsageError(
                f"max_length is {max_length}, which leaves no token to the text: the tokenizer adds "
                f"{added} to each document",
                hint=f"expected at least {added + 1}",
            )
        size = sum(map(len, texts))
        memory, seconds = _ENCODE_LIMITS
        memory += _BYTES_PER_CHARACTER * size
        seconds += size / _CHARACTERS_PER_SECOND
        what = f"Tokenizer {self.about.get('name')} cannot tokenize a text"
        with _name_failure(what), limit_resources(memory, seconds):
            if max_length is None:
                self._backend.no_truncation()
            else:
                self._backend.enable_truncation(max_length)
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=special)
            ids = [encoding.ids for encoding in encodings]
            lengths = np.fromiter(map(len, ids), np.int64, len(ids))
            tokens = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))
            cut = np.fromiter((bool(e.overflowing) for e in encodings), bool, len(ids))
        return EncodedTexts(tokens, lengths, cut)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included; raises `FormatError`."""
        with _name_failure(f"Tokenizer {self.about.get('name')} cannot decode tokens"):
            return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def choose_end(self, eos: Eos | None, *, special: bool = True) -> int | None:
        """Return the token to append to documents, if any; see `TextOptions.eos`.

        `special`: whether the tokenizer adds special tokens to the documents. Raises `UsageError`
        if one is requested, and the tokenizer names none.
        """
        token: int | None = self.about["special"].get("eos")
        if eos == "yes" and token is None:
            raise UsageError(
                f"Tokenizer {self.about.get('name')} names no end-of-text token to append",
                hint="choose --eos auto, or a tokenizer with an eos_token",
            )
        wanted = eos == "yes" or (eos == "auto" and special)
        return token if wanted and not (special and token in self.after) else None

    def chat_text(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
        """Return a conversation, `role` and `content` of each turn, by the chat template.

        `prompt`: the beginning of an assistant's turn follows. Raises `UsageError` without a
        template, `FormatError` if it does not accept the conversation.
        """
        if self._chat is None or not self._chat.chat_template:
            raise UsageError(
                f"Tokenizer {self.about.get('name')} has no chat template, which conversations need",
                hint="name a tokenizer of a chat model, or choose --form prompt, or --form text",
            )
        try:
            text = str(
                self._chat.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=prompt
                )
            )
        except Exception as error:
            said = shown(str(error), 200) if str(error) else type(error).__name__
            raise FormatError(f"The chat template fails: {said}") from error
        if len(text) > MAX_LINE:
            raise FormatError(f"The chat template writes more than {MAX_LINE:,} characters")
        return text


def pin_tokenizer(options: TextOptions, *, offline: bool = False) -> TextOptions:
    """Return options with the digest of their tokenizer, which then may not change.

    One on the hub is pinned to its commit, a path is made absolute, and `eos` is None where neither
    it nor another token is added after a text. The tokenizer is loaded in a child process, with
    limits. Raises as `load_tokenizer`, and `UsageError` as `Tokenizer.choose_end`.
    """
    if options.tokenizer_sha256 is not None:
        return options
    with Child(pack_importable(_describe), quiet=True) as child:
        try:
            revision, sha256, changes = child.ask((options, offline))
        except ChildDiedError:
            raise FormatError(
                f"Tokenizer {options.tokenizer!r} cannot be loaded: the process that did so "
                f"{child.ending}",
                hint="it is damaged, or memory is short; download or save it again",
            ) from None
    place, path = options.tokenizer, Path(options.tokenizer).expanduser()
    if path.exists():
        place = str(path.absolute())
    return replace(
        options,
        tokenizer=place,
        tokenizer_revision=revision or options.tokenizer_revision,
        tokenizer_sha256=sha256,
        eos=options.eos if changes or options.eos != "auto" else None,
    )


def _describe(request: tuple[TextOptions, bool]) -> tuple[str | None, str, bool]:
    """Return commit and digest of a tokenizer, and whether `eos="auto"` changes any dataset."""
    options, offline = request
    found = load_tokenizer(options.tokenizer, options.tokenizer_revision, offline=offline)
    end = found.choose_end(options.eos)
    masked = bool(found.after) and options.form != "text"
    return found.about.get("revision"), found.about["sha256"], end is not None or masked


def load_tokenizer(name: str, revision: str | None = None, *, offline: bool = False) -> Tokenizer:
    """Load a tokenizer, once while its files do not change; see `TextOptions.tokenizer`.

    No code from the hub is run.

    Raises:
        NotFoundError: There is none of that name on this disk or, unless offline, on the hub.
        NetworkError: The hub does not answer.
        FormatError: It is damaged, or has no fast version.
        UsageError: A revision of one that is not on the hub.
        MissingDependencyError: `tokenizers` or `transformers` is not installed.
    """
    if not name:
        raise UsageError(
            "Text must be tokenized, and no tokenizer was named",
            hint=TOKENIZER_HINT,
        )
    with limit_resources(*_LOAD_LIMITS):
        return _load(name, revision, offline, _state_of(Path(name).expanduser()))


def _state_of(path: Path) -> tuple[Any, ...]:
    """Return what differs once a tokenizer on this disk has changed; reading it says what is wrong."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return path.absolute(), *(
            (file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files
        )
    except (OSError, ValueError):
        return (path.absolute(),)


@lru_cache(maxsize=4)
def _load(name: str, revision: str | None, offline: bool, state: tuple[Any, ...]) -> Tokenizer:  # noqa: ARG001 - part of the key
    path = Path(name).expanduser()
    if revision and (path.suffix == ".json" or path.is_dir() or looks_like_path(name)):
        raise UsageError(f"{path} is on this disk: it has no revision {revision!r}")
    if path.suffix == ".json" or (looks_like_path(name) and path.is_file()):
        return _of_file(path)
    if looks_like_path(name) and not path.is_dir():
        raise NotFoundError(f"There is no tokenizer at {path}")
    return _load_pretrained(path if path.is_dir() else name, revision, offline=offline)


def _of_file(path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError as error:
        raise _missing("tokenizers") from error
    data = read_whole(path, _MAX_FILE)
    hint = "name the file that `tokenizer.save` or `save_pretrained` writes"
    with _name_failure(f"{path} is not a tokenizer.json", hint):
        return Tokenizer(Backend.from_buffer(data), about={"name": path.name})


def _added_tokens(backend: Any) -> tuple[list[int], list[int]]:
    """Return the token ids that a `tokenizers.Tokenizer` adds before and after a text."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import WordLevel

    if backend.post_processor is None:
        return [], []
    found = backend.post_processor.process(Backend(WordLevel({"x": 0}, "x")).encode("x"))
    text = [place for place, added in enumerate(found.special_tokens_mask) if not added]
    if not text:
        raise FormatError("its post-processor drops the text")
    return found.ids[: text[0]], found.ids[text[-1] + 1 :]


@contextmanager
def _name_failure(what: str, hint: str | None = None) -> Iterator[None]:
    """Turn what `tokenizers` raises, also for a bug of its own, into a `FormatError`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise FormatError(f"{what}: {shown(str(error), 200)}", hint=hint) from error


def _load_pretrained(name: str | Path, revision: str | None, *, offline: bool) -> Tokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise _missing("transformers") from error
    folder, absent = isinstance(name, Path), None
    if not (folder or offline):
        try:
            require_network()
        except NoNetworkError as error:  # the user's cache may have it
            absent = error
    try:
        found = AutoTokenizer.from_pretrained(
            str(name),
            revision=revision or "main",
            use_fast=True,
            trust_remote_code=False,
            local_files_only=offline or folder or absent is not None,
        )
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        if absent is not None:
            raise NoNetworkError(
                f"{absent.message}; tokenizer {name!r} is not on this disk",
                hint="name the folder of a tokenizer, or a tokenizer.json",
            ) from None
        said = (str(error).splitlines() or [""])[0] or type(error).__name__
        if not (folder or offline) and _is_connection_error(error):
            raise NetworkError(
                f"Tokenizer {name!r} is not on this disk, and the hub does not answer: "
                f"{shown(said, 200)}",
                hint="try again later; --offline does not ask",
            ) from error
        if folder or not isinstance(error, OSError):
            raise FormatError(
                f"{name} is not a tokenizer: {shown(said, 200)}",
                hint="name a folder that `save_pretrained` wrote, or a tokenizer.json",
            ) from error
        raise NotFoundError(
            f"Tokenizer {str(name)!r} cannot be loaded: {shown(said, 200)}",
            hint="it is not on this disk, and this is offline mode"
            if offline
            else "check the name on the hub; a gated model also needs `hf auth login`",
        ) from error
    if not found.is_fast:
        raise FormatError(
            f"Tokenizer {str(name)!r} has no fast version (tokenizer.json)",
            hint="convert it with transformers, and name the folder it is saved in",
        )
    commit = getattr(found, "init_kwargs", {}).get("_commit_hash")
    identity = name.name if isinstance(name, Path) else str(found.name_or_path)
    about = {"name": identity, "revision": commit}
    pad = found.pad_token_id if found.pad_token_id is not None else found.eos_token_id
    with _name_failure(f"{name} is not a tokenizer"):
        return Tokenizer(found.backend_tokenizer, found, pad, about)


def _is_connection_error(error: BaseException | None) -> bool:
    """Return True if an error, or what caused it, is that no server answered."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names & {"TransportError", "ConnectionError", "TimeoutError"}:  # of any HTTP library
            return True
        error = error.__cause__ or error.__context__
    return False


def _missing(package: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"Tokenizing needs {package}, which is not installed",
        hint="pip install 'offline-data[rlhf]'",
    )
