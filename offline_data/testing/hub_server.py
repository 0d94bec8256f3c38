"""A Hugging Face hub on this machine: serves folders as dataset repositories to huggingface_hub."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from offline_data.testing.servers import Answer, LocalServer, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_BORN = "2024-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class _Entry:
    path: str
    content: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """Git's name of a blob with this content."""
        header = f"blob {len(self.content)}\0".encode()
        return hashlib.sha1(header + self.content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class _Commit:
    repo: str
    sha: str
    entries: Mapping[str, _Entry]


class HubServer(LocalServer):
    """Serves what huggingface_hub asks for about datasets: info, tree, paths, files, list.

    Give its `url` as the endpoint (`Settings.hub_endpoint`, `HfApi(endpoint=…)`). Files of at
    least `lfs_size` bytes are LFS files, with a sha256 and a redirect, as on the real hub.

    Args:
        repos: Repository id (`user/name`) to the folder whose files it has.
        token: Where given, requests without this token get 401.
        lfs_size: Bytes from which on a file is an LFS file.
        page_size: Entries in one page of a listing.
    """

    def __init__(
        self,
        repos: Mapping[str, Path] | None = None,
        *,
        token: str | None = None,
        lfs_size: int = 1024,
        page_size: int = 1000,
    ) -> None:
        super().__init__()
        self._token = token
        self._lfs_size = lfs_size
        self._page_size = page_size
        self._commits: dict[tuple[str, str], _Commit] = {}
        for repo, folder in (repos or {}).items():
            self.commit(repo, folder)

    def commit(self, repo: str, folder: Path, revision: str = "main") -> str:
        """Let `revision` of `repo` have the files that `folder` has now.

        Returns:
            The commit sha, 40 hex digits, a function of paths and contents. Earlier commits
            stay available by their sha.
        """
        entries = {entry.path: entry for entry in self._entries(folder)}
        names = "".join(f"{path}\0{entry.sha256}\n" for path, entry in entries.items())
        sha = hashlib.sha1(f"{repo}\n{names}".encode(), usedforsecurity=False).hexdigest()
        commit = _Commit(repo, sha, entries)
        self._commits[repo, sha] = self._commits[repo, revision] = commit
        return sha

    def _entries(self, folder: Path) -> list[_Entry]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents = [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files]
        return [_Entry(name, data, len(data) >= self._lfs_size) for name, data in contents]

    def answer(self, request: Request) -> Answer:
        """Answer as the hub would; 404 with its error codes where it has nothing."""
        if request.path.startswith("/cdn/"):
            return self._blob(request.path.removeprefix("/cdn/"))
        if self._token and request.headers.get("authorization") != f"Bearer {self._token}":
            return _unknown_user(request)
        if request.path == "/api/datasets":
            return self._page(request, self._found(request))
        parts = request.path.strip("/").split("/")
        if parts[:2] == ["api", "datasets"] and len(parts) >= 4:
            return self._about(request, "/".join(parts[2:4]), parts[4:])
        if parts[0] == "datasets" and len(parts) >= 6 and parts[3] == "resolve":
            return self._file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        return _refuse(404, "RepoNotFound", "Repository not found")

    def _about(self, request: Request, repo: str, rest: list[str]) -> Answer:
        verb, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        commit = self._commits.get((repo, revision))
        if commit is None:
            return self._no_commit(repo)
        if verb == "tree":
            return self._page(request, _tree(commit, "/".join(rest[2:]), request))
        if verb == "paths-info":
            return _json(_paths(commit, parse_qs(request.body.decode())["paths"]))
        return _json(_info(commit, sizes="blobs" in request.query))

    def _file(self, repo: str, revision: str, path: str) -> Answer:
        commit = self._commits.get((repo, revision))
        if commit is None:
            return self._no_commit(repo)
        entry = commit.entries.get(path)
        if entry is None:
            return _refuse(404, "EntryNotFound", "Entry not found", commit.sha)
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{entry.oid}"'}
        if not entry.lfs:
            return Answer(entry.content, headers=headers)
        linked = {"X-Linked-Size": str(len(entry.content)), "X-Linked-ETag": f'"{entry.sha256}"'}
        # another host than the one that was asked, as on the real hub: it gets no token
        cdn = self.url.replace("127.0.0.1", "localhost")
        away = {"Location": f"{cdn}/cdn/{entry.sha256}"}
        return Answer(b"", 302, {**headers, **linked, **away})

    def _blob(self, sha256: str) -> Answer:
        for commit in self._commits.values():
            for entry in commit.entries.values():
                if entry.sha256 == sha256:
                    headers = {"ETag": f'"{sha256}"', "X-Repo-Commit": commit.sha}
                    return Answer(entry.content, headers=headers)
        return Answer(b"", 404)

    def _no_commit(self, repo: str) -> Answer:
        if any(known == repo for known, _ in self._commits):
            return _refuse(404, "RevisionNotFound", "Invalid rev id")
        return _refuse(401, "RepoNotFound", "Repository not found")

    def _found(self, request: Request) -> list[dict[str, Any]]:
        author = request.query.get("author", [""])[0]
        words = [word.casefold() for word in request.query.get("search", [])]
        mains = [commit for (_, name), commit in self._commits.items() if name == "main"]
        wanted: Callable[[_Commit], bool] = lambda commit: (
            (not author or commit.repo.split("/")[0] == author)
            and all(word in commit.repo.casefold() for word in words)
        )
        return [_info(commit, sizes=False) for commit in mains if wanted(commit)]

    def _page(self, request: Request, items: list[dict[str, Any]] | None) -> Answer:
        if items is None:
            return _refuse(404, "EntryNotFound", "Entry not found")
        start = int(request.query.get("cursor", ["0"])[0])
        limit = int(request.query.get("limit", [str(self._page_size)])[0])
        stop = start + min(limit, self._page_size)
        base = request.target.partition("&cursor=")[0]
        joined = base + ("" if "?" in base else "?")
        link = {"Link": f'<{self.url}{joined}&cursor={stop}>; rel="next"'}
        return _json(items[start:stop], link if stop < len(items) else {})


def _json(value: Any, headers: Mapping[str, str] | None = None) -> Answer:
    body = json.dumps(value).encode()
    return Answer(body, headers={"Content-Type": "application/json", **(headers or {})})


def _refuse(status: int, code: str, message: str, commit: str | None = None) -> Answer:
    headers = {"X-Error-Code": code, "X-Error-Message": message}
    if commit:
        headers["X-Repo-Commit"] = commit
    return Answer(json.dumps({"error": message}).encode(), status, headers)


def _unknown_user(request: Request) -> Answer:
    """Refuse as the hub does: without a token, a private repository seems not to exist."""
    if "authorization" in request.headers:
        return _refuse(401, "", "Invalid credentials in Authorization header")
    return _refuse(401, "RepoNotFound", "Invalid username or password.")


def _info(commit: _Commit, *, sizes: bool) -> dict[str, Any]:
    files = [_sibling(entry, sizes=sizes) for entry in commit.entries.values()]
    return {
        "id": commit.repo,
        "author": commit.repo.split("/")[0],
        "sha": commit.sha,
        "createdAt": _BORN,
        "lastModified": _BORN,
        "private": False,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": files,
    }


def _sibling(entry: _Entry, *, sizes: bool) -> dict[str, Any]:
    if not sizes:
        return {"rfilename": entry.path}
    size = len(entry.content)
    lfs = {"lfs": {"sha256": entry.sha256, "size": size, "pointerSize": 134}} if entry.lfs else {}
    return {"rfilename": entry.path, "size": size, "blobId": entry.oid, **lfs}


def _listed(entry: _Entry) -> dict[str, Any]:
    size = len(entry.content)
    lfs = {"lfs": {"oid": entry.sha256, "size": size, "pointerSize": 134}} if entry.lfs else {}
    return {"type": "file", "oid": entry.oid, "size": size, "path": entry.path, **lfs}


def _folder(path: str) -> dict[str, Any]:
    oid = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
    return {"type": "directory", "oid": oid, "size": 0, "path": path}


def _folders(commit: _Commit) -> set[str]:
    parents = [path.split("/")[:-1] for path in commit.entries]
    return {"/".join(parts[:end]) for parts in parents for end in range(1, len(parts) + 1)}


def _tree(commit: _Commit, under: str, request: Request) -> list[dict[str, Any]] | None:
    """List files and folders below `under`, or None where there is no such folder."""
    if under and under not in _folders(commit):
        return None
    prefix = f"{under}/" if under else ""
    rows = [_folder(path) for path in sorted(_folders(commit))]
    rows += [_listed(entry) for entry in commit.entries.values()]
    deep = request.query.get("recursive", ["false"])[0].lower() == "true"
    inside = [row for row in rows if row["path"].startswith(prefix)]
    return [row for row in inside if deep or "/" not in row["path"].removeprefix(prefix)]


def _paths(commit: _Commit, paths: list[str]) -> list[dict[str, Any]]:
    files = [_listed(commit.entries[path]) for path in paths if path in commit.entries]
    return files + [_folder(path) for path in paths if path in _folders(commit)]
