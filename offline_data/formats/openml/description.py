"""OpenML's descriptions of datasets, JSON from its REST interface.

`GET https://www.openml.org/api/v1/json/data/ID`, see https://www.openml.org/apis. Empty fields are
missing, or empty lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from offline_data.base.errors import FormatError
from offline_data.base.json import parse_json, shown
from offline_data.formats.base import RemoteFile

DESCRIPTION = "description.json"  # name among raw files
API = "https://www.openml.org/api/v1/json/data"
_ABOUT = (
    "id", "name", "version", "format", "url", "md5_checksum", "status", "creator", "collection_date",
    "upload_date", "original_data_url", "paper_url",
)  # fmt: skip


@dataclass(frozen=True)
class Description:
    """The description of one dataset."""

    fields: dict[str, str]  # those that are non-empty text
    ignored: tuple[str, ...] = ()
    """Names of attributes that are not inputs: row ids, and others that OpenML lists."""

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")

    @property
    def about(self) -> dict[str, str]:
        return {name: self[name] for name in _ABOUT if self[name]}

    def data_file(self) -> RemoteFile:
        """Return the file to download, ARFF with md5, else Parquet; raises `FormatError`."""
        if self["format"].lower() in {"arff", "sparse_arff", ""} and self["url"]:
            digest = f"md5:{self['md5_checksum'].lower()}" if self["md5_checksum"] else None
            return RemoteFile("data.arff", _places(self["url"]), digest=digest)
        url = self["parquet_url"] or self["minio_url"] or self["url"]
        if not url:
            raise FormatError(f"OpenML's dataset {self['id']} has no file to download")
        if not urlsplit(url).path.endswith((".pq", ".parquet")):
            raise FormatError(
                f"OpenML's dataset {self['id']} is published as {shown(self['format'])} only; "
                "expected ARFF or Parquet"
            )
        return RemoteFile("data.pq", _places(url), magic=b"PAR1")


def parse_description(body: bytes, where: str) -> Description:
    """Parse the JSON of a description; raises `FormatError`."""
    answer = parse_json(body, where)
    found = answer.get("data_set_description") if isinstance(answer, dict) else None
    if not isinstance(found, dict):
        raise FormatError(f"{where} is not OpenML's description of a dataset: {shown(answer)}")
    fields = {name: value for name, value in found.items() if isinstance(value, str) and value}
    ignored = [*_names(found.get("ignore_attribute")), *_names(found.get("row_id_attribute"))]
    return Description(fields, tuple(ignored))


def _names(value: Any) -> list[str]:
    """Return names given as a list, or as one text with commas."""
    if isinstance(value, str):
        return [value, *(part.strip().strip("'\"") for part in value.split(","))] if value else []
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def target_names(text: str, columns: list[str]) -> list[str]:
    """Return the target attributes of a description; raises `FormatError`.

    Example:
        >>> target_names("happy,sad", ["tempo", "happy", "sad"])
        ['happy', 'sad']
    """
    if not text or text in columns:
        return [text] if text else []
    names = [part.strip().strip("'\"") for part in text.split(",")]
    for name in names:
        if name not in columns:
            raise FormatError(f"The target {shown(name)} is none of its attributes")
    return names


def _places(url: str) -> tuple[str, ...]:
    scheme, _, rest = url.partition("://")
    if scheme not in {"http", "https"} or not rest:  # untrusted: no file:// of this machine
        raise FormatError(f"OpenML names {shown(url)} as its file; expected a URL of the web")
    return (url,)
