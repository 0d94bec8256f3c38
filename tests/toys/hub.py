"""A Hugging Face hub that can be written to: repositories, uploads of large files, commits."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toys.servers import Answer, HubServer, Request, _Commit, _json, _refuse, _sha1, _sha256

TOKEN = "hf_writes_and_hush"  # noqa: S105 - of no hub


class WritableHub(HubServer):
    """A `HubServer` that takes pushes; all requests but those for uploads need `TOKEN`.

    Attributes:
        private: Whether only its owner can read a repository, by id.
        objects: Large files that were uploaded, by sha256, committed or not.
        uploads: The sha256 of every upload that was accepted, in order.
    """

    def __init__(self, repos: Mapping[str, Path] | None = None, *, lfs_size: int = 256) -> None:
        super().__init__(repos, token=TOKEN, lfs_size=lfs_size)
        self.private = dict.fromkeys(repos or {}, True)
        self.objects: dict[str, bytes] = {}
        self.uploads: list[str] = []

    def files(self, repo: str) -> Mapping[str, bytes]:
        """Return the files of the main branch."""
        return self._commits[repo, "main"].files

    def head(self, repo: str) -> str:
        """Return the commit of the main branch."""
        return self._commits[repo, "main"].sha

    def asked(self, part: str) -> int:
        """Return how many requests had `part` in their path."""
        return sum(part in request.path for request in self.requests)

    def answer(self, request: Request) -> Answer:
        """Answer like the hub."""
        if request.path.startswith("/upload/"):  # a signed address: without the token
            assert "authorization" not in request.headers
            return self._take(request)
        if request.headers.get("authorization") != f"Bearer {TOKEN}" or request.method == "GET":
            return self._read(request)
        parts = request.path.strip("/").split("/")
        asked = {} if parts[-2] == "commit" else json.loads(request.body)
        if request.path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if request.path == "/api/repos/create":
            return self._create(asked)
        if request.path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(asked)
        repo = "/".join(parts[2:4])
        if (repo, "main") not in self._commits:
            return self._no_commit(repo)
        if parts[4] == "settings":
            self.private[repo] = _is_private(asked)
            return _json({})
        if parts[4] == "preupload":
            return self._modes(repo, asked)
        if parts[4] == "commit":
            return self._commit(repo, [json.loads(line) for line in request.body.splitlines()])
        return super().answer(request)

    def _read(self, request: Request) -> Answer:
        found = super().answer(request)
        parts = request.path.strip("/").split("/")
        if found.status == 200 and parts[:2] == ["api", "datasets"] and "tree" not in parts:
            about = json.loads(found.body)
            if isinstance(about, dict):
                return _json({**about, "private": self.private["/".join(parts[2:4])]})
        return found

    def _create(self, asked: Mapping[str, Any]) -> Answer:
        repo = f"{asked['organization']}/{asked['name']}"
        if (repo, "main") in self._commits:
            return _refuse(409, "", "You already created this dataset repo")
        self.private[repo] = _is_private(asked)
        self._put(repo, {".gitattributes": b"*.bin filter=lfs\n"})
        return _json({"url": f"{self.url}/datasets/{repo}", "name": repo})

    def _modes(self, repo: str, asked: Mapping[str, Any]) -> Answer:
        files, commit = [], self._commits[repo, "main"]
        for one in asked["files"]:
            mode = "lfs" if one["size"] >= self._lfs_size else "regular"
            facts = commit.facts(one["path"]) if one["path"] in commit.files else {}
            oid = facts.get("lfs", facts).get("oid")
            files.append({**one, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return _json({"files": files})

    def _batch(self, asked: Mapping[str, Any]) -> Answer:
        objects = []
        for one in asked["objects"]:
            href = f"{self.url}/upload/{one['oid']}?X-Amz-Signature=hush"
            action = {"actions": {"upload": {"href": href}}}
            objects.append({**one, **({} if one["oid"] in self.objects else action)})
        return _json({"objects": objects, "transfer": "basic"})

    def _take(self, request: Request) -> Answer:
        sha256 = request.path.rpartition("/")[2]
        if _sha256(request.body) != sha256:
            return Answer(b"", 400)
        self.objects[sha256] = request.body
        self.uploads.append(sha256)
        return Answer()

    def _commit(self, repo: str, lines: list[Mapping[str, Any]]) -> Answer:
        head = lines[0]["value"]
        if head.get("parentCommit") not in {None, self.head(repo)}:
            return _refuse(412, "", "A commit has happened since. Please refresh and try again.")
        files = dict(self.files(repo))
        for line in lines[1:]:
            kind, value = line["key"], line["value"]
            if kind == "deletedFile":
                del files[value["path"]]
            elif kind == "lfsFile":
                if value["oid"] not in self.objects:
                    return _refuse(
                        400, "", f"LFS pointer pointed to a file that does not exist: {value}"
                    )
                files[value["path"]] = self.objects[value["oid"]]
            else:
                assert kind == "file"
                files[value["path"]] = base64.b64decode(value["content"])
        sha = self._put(repo, files)
        return _json({"commitUrl": f"{self.url}/datasets/{repo}/commit/{sha}", "commitOid": sha})

    def _put(self, repo: str, files: Mapping[str, bytes]) -> str:
        names = "".join(f"{path}\0{_sha256(files[path])}\n" for path in sorted(files))
        self.private.setdefault(repo, True)
        sha = _sha1(f"{repo}\n{len(self._commits)}\n{names}".encode())
        commit = _Commit(repo, sha, dict(sorted(files.items())), self._lfs_size)
        self._commits[repo, sha] = self._commits[repo, "main"] = commit
        return sha


def _is_private(asked: Mapping[str, Any]) -> bool:
    """Read what versions of huggingface_hub say in different words."""
    return bool(asked.get("private", asked.get("visibility") == "private"))
