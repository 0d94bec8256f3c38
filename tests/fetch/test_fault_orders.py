"""Faults in any order, by hypothesis: the right bytes in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from offline_data.config import Settings
from offline_data.errors import IntegrityError, NetworkError, NotFoundError
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.testing.servers import Answer, Fault, FileServer
from tests.fetch.published import PATH, published

Fetch = Callable[..., FetchedFile]
HTML = Answer(b"<!DOCTYPE html><title>Log in</title>", headers={"Content-Type": "text/html"})

STEPS = st.sampled_from(
    [
        Fault(cut_after=0),
        Fault(cut_after=1),
        Fault(cut_after=40_000),
        Fault(cut_after=150_000),
        Fault(Answer(b"", 503)),
        Fault(ignore_range=True, cut_after=90_000),
        Fault(claimed_length=100_000),
        Fault(HTML),
        Fault(Answer(b"", 404)),
        Fault(Answer(b"no such range", 416, {"Content-Range": "bytes */5"})),
    ]
)


@hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(faults=st.lists(STEPS, max_size=6), digest=st.booleans(), validators=st.booleans())
def test_any_order_of_faults_ends_in_the_right_bytes_or_in_an_error(
    faults: list[Fault],
    digest: bool,
    validators: bool,
    content: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    fetch: Fetch,
) -> None:
    settings = Settings(root=tmp_path_factory.mktemp("any"))
    told = published(content, "all" if digest else "size")
    with FileServer({PATH: content}, validators=validators) as server:
        server.script(PATH, *faults)
        file = RemoteFile("door.hdf5", (server.at(PATH),), *told)
        try:
            found = fetch(file, settings)
        except (NetworkError, NotFoundError, IntegrityError):
            assert sorted((settings.downloads / "sha256").glob("*/*")) == []
            server.clear_script()
            found = fetch(file, settings)
        assert found.path.read_bytes() == content
