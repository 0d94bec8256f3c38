"""The text of a dataset's tokens, if their tokenizer is on this disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_data.base.errors import OfflineDataError, UsageError
from offline_data.store.manifest import Manifest
from offline_data.store.tokenizers import find_tokenizer


def find_decoder(
    root: Path, manifest: Manifest, named: str | None = None
) -> Callable[[Sequence[int]], str] | None:
    """Return what turns the tokens of a dataset into text; None: no tokens, or none on this disk.

    A tokenizer that was a file is where it was when a dataset under `root` was made with it. If it
    is `named`, raises as `load_tokenizer`.
    """
    about = manifest.about.get("tokenizer")
    known: Mapping[str, Any] = about if isinstance(about, Mapping) else {}
    name, revision = named or known.get("name"), None if named else known.get("revision")
    if not named and not revision:
        name = find_tokenizer(root, known.get("sha256"))
    if not known or not isinstance(name, str):
        return None
    from offline_data.text.tokenizer import load_tokenizer  # tokens are rare, and this takes time

    try:
        found = load_tokenizer(name, revision, offline=True)
    except OfflineDataError:
        if named:
            raise
        return None
    if found.about["sha256"] != known.get("sha256"):
        if not named:
            return None
        raise UsageError(
            f"{name} is not the tokenizer of {manifest.id}: its sha256 is "
            f"{found.about['sha256'][:12]}…, the dataset's {str(known.get('sha256'))[:12]}…"
        )
    return found.decode
