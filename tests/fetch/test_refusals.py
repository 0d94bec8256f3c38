"""Plans, listings, answers of the hub and mirrors that are refused: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_data.base.config import Settings, resolve_settings
from offline_data.fetch.cache import whole_path
from offline_data.fetch.files import FetchedFile, RemoteFile, assemble
from offline_data.fetch.gcs import GcsListing, list_bucket
from offline_data.fetch.hub import list_hub, parse_hub_url
from offline_data.fetch.plan import plan_fetch
from tests.fetch.test_gcs import ITEM, URL, page
from tests.refusals import Refusals
from tests.toys.servers import Answer, Fault, HubServer

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
FILE = RemoteFile("door.hdf5", ("http://host.example/door.hdf5",), size=5)
ON_HUB = {"type": "file", "path": "a.hdf5", "size": 3, "oid": "0" * 40}
REPO = "farama/D4RL"
TREE = f"/api/datasets/{REPO}/tree/{'0' * 40}"
NAMES: dict[str, Any] = {
    "FILE": FILE,
    "ON_HUB": ON_HUB,
    "ITEM": ITEM,
    "page": page,
    "replace": replace,
    "plan_fetch": plan_fetch,
    "assemble": assemble,
    "list_bucket": list_bucket,
    "parse_hub_url": parse_hub_url,
    "read": lambda body: GcsListing("open-x", "door").read_page(body, URL),
    "mirror": lambda pair: resolve_settings(environ={"OFFLINE_DATA_MIRRORS": pair}),
}


@REFUSALS.cases
def test_refusals(kind: str, text: str, online: Settings, tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    with HubServer({REPO: tmp_path / "repo"}) as server:
        settings = replace(online, hub_endpoint=server.url)

        def hub(tree: Any, about: Any = None, **more: Any) -> object:
            """List a repository of which the hub says `about`, by default a commit and `more`."""
            info = {"sha": "0" * 40, **more} if about is None else about
            for path, answer in ((f"/api/datasets/{REPO}", info), (TREE, tree)):
                server.always(path, Fault(Answer(json.dumps(answer).encode())))
            return list_hub(REPO, "", None, settings)

        def plan(**changes: Any) -> object:
            return plan_fetch([replace(FILE, **changes)], settings)

        place = whole_path(settings, "0" * 64)
        laid = FetchedFile("good", place, "0" * 64, 1, "http://host.example/x")
        names = {**NAMES, "hub": hub, "plan": plan}
        names |= {"LAID": laid, "FOLDER": tmp_path, "settings": settings}
        known = {URL: "URL", tmp_path: "FOLDER", server.url: "HUB"}
        REFUSALS.check(kind, text, lambda: eval(text, names), known)  # noqa: S307
    said = str(REFUSALS.known[kind][text])
    assert kind != "buckets" or "URL" in said or "gs://BUCKET/PREFIX" in said
    assert said.isprintable()
    assert {one.name for one in tmp_path.iterdir()} <= {"repo", "root"}
