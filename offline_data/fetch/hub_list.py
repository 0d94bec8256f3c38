"""Lists a folder of a dataset repository of the Hugging Face hub, pinned to a commit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from offline_data.errors import FormatError, NotFoundError
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.hub_api import ask_hub, hub_api

if TYPE_CHECKING:
    from offline_data.config import Settings

_MOST_ENTRIES = 1_000_000


@dataclass(frozen=True)
class HubListing:
    """What a folder of a repository has at one commit."""

    commit: str
    """Sha, 40 hex digits: the same files for ever."""
    files: tuple[RemoteFile, ...]
    """Sorted by path; `path` is the one in the repository. Each has its size, and a digest: sha256
    of what is kept in LFS or Xet, git's blob id of what is not."""


def list_hub(repo: str, folder: str, revision: str | None, settings: Settings) -> HubListing:
    """List all files below a folder.

    Args:
        repo: `user/name` of a dataset repository.
        folder: Posix path in it; empty for all of it.
        revision: Commit, branch or tag; None for the main branch.
        settings: Endpoint and token.

    Raises:
        NotFoundError: No such repository, revision or folder, or no files in it.
        AuthError: The hub refuses.
        NetworkError: It does not answer as it should, after several tries.
        OfflineError: `settings.offline` is set.
    """
    api, what = hub_api(settings), f"dataset repository {repo}"
    commit = ask_hub(what, lambda: str(api.dataset_info(repo, revision=revision).sha))

    def entries() -> list[Any]:
        listed = api.list_repo_tree(
            repo,
            path_in_repo=folder.rstrip("/") or None,
            recursive=True,
            revision=commit,
            repo_type="dataset",
        )
        return list(islice(listed, _MOST_ENTRIES + 1))

    found = sorted(ask_hub(what, entries), key=lambda entry: str(entry.path))
    if len(found) > _MOST_ENTRIES:
        raise FormatError(f"The listing of {repo} has more than {_MOST_ENTRIES:,} entries")
    files = tuple(_remote_file(entry, repo, commit) for entry in found if hasattr(entry, "size"))
    if not files:
        raise NotFoundError(f"{repo} has no files in {folder or 'it'}")
    return HubListing(commit, files)


def _remote_file(entry: Any, repo: str, commit: str) -> RemoteFile:
    digest = f"sha256:{entry.lfs.sha256}" if entry.lfs else f"git:{entry.blob_id}"
    url = f"hf://datasets/{repo}@{commit}/{entry.path}"
    return RemoteFile(entry.path, (url,), entry.size, digest)
