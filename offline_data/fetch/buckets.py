"""Lists public buckets of Google Cloud Storage, S3 and hosts like it, over plain HTTPS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from offline_data.errors import AuthError, NetworkError, NotFoundError, UsageError
from offline_data.fetch.gcs import GcsListing
from offline_data.fetch.http import get_document
from offline_data.fetch.objects import BucketObject, damaged
from offline_data.fetch.s3 import S3Listing, aws_bucket_url
from offline_data.paths import is_unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offline_data.config import Settings
    from offline_data.errors import OfflineDataError
    from offline_data.fetch.limits import FetchLimits
    from offline_data.fetch.objects import Listing, Page

__all__ = ["BucketObject", "list_bucket"]

_FORMS = "gs://BUCKET/PREFIX, s3://BUCKET/PREFIX or s3+https://HOST/BUCKET/PREFIX"
_MOST_PAGES = 10_000
"""Pages of a listing, a thousand objects each: more than any dataset has."""
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}[A-Za-z0-9]")
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_ADVICE: dict[type[Exception], str] = {
    NotFoundError: "is the bucket's name right? OFFLINE_DATA_MIRRORS names other hosts",
    AuthError: "its owner lets nobody list it; its objects may be public all the same",
}


def list_bucket(
    url: str,
    settings: Settings,
    *,
    ending: str = "",
    limits: FetchLimits | None = None,
    sleep: Callable[[float], None] | None = None,
) -> tuple[BucketObject, ...]:
    """List the objects of a public bucket whose names begin with a prefix.

    - `gs://BUCKET/PREFIX`: Google Cloud Storage.
    - `s3://BUCKET/PREFIX`: Amazon S3, in any region; a bucket with dots or capitals in its name only
      in us-east-1.
    - `s3+https://HOST/BUCKET/PREFIX`: Amazon S3 in a region that is named
      (`s3.eu-west-1.amazonaws.com`), or another host that speaks its protocol; also `s3+http://`.

    Nothing in a URL is unquoted. `a/b` is also the beginning of `a/bc`: a folder ends with `/`.
    A mirror of the settings replaces the beginning of the `https://` URLs of pages and objects.

    Args:
        url: Bucket and prefix.
        settings: Mirrors, and whether a network may be used.
        ending: Leave out objects whose names end otherwise; Google's host is told, so that it
            need not send them.
        limits: Waits and tries; None for the defaults.
        sleep: Waits so many seconds between tries; None for `time.sleep`.

    Returns:
        By name, in the order of code points; without placeholders of folders (names that end
        with `/`). Empty where nothing has the prefix. What changes while pages are being fetched
        may be in it or not.

    Raises:
        UsageError: The URL has another form, or a name that no bucket has.
        OfflineError: `settings.offline` is set; no socket was opened.
        NotFoundError: No such bucket.
        AuthError: It may not be listed without an account.
        NetworkError: The host does not answer as it should.
        IntegrityError: What came is no listing, lists an object twice, or never ends.
    """
    listing = _listing_of(url, ending)
    found: dict[str, BucketObject] = {}
    for page, place in _pages(listing, settings, limits, sleep):
        for listed in page.objects:
            if listed.name in found:
                raise damaged(place, f"{listed.name!r} is listed twice")
            found[listed.name] = listed
    return tuple(
        found[name] for name in sorted(found) if name.endswith(ending) and not name.endswith("/")
    )


def _listing_of(url: str, ending: str) -> Listing:
    scheme, _, rest = url.partition("://")
    if scheme in {"s3+https", "s3+http"}:
        host, _, rest = rest.partition("/")
        bucket, prefix = _split(rest, url)
        if not _HOST.fullmatch(host):
            raise UsageError(f"{url!r} names no host; expected {_FORMS}")
        place = f"{scheme}://{host}/{bucket}"
        return S3Listing(place, place.removeprefix("s3+"), prefix)
    bucket, prefix = _split(rest, url)
    if scheme == "gs":
        return GcsListing(bucket, prefix, ending)
    if scheme == "s3":
        return S3Listing(f"s3://{bucket}", aws_bucket_url(bucket), prefix)
    raise UsageError(f"{url!r} is not the URL of a bucket; expected {_FORMS}")


def _split(rest: str, url: str) -> tuple[str, str]:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or not is_unicode(prefix):
        raise UsageError(f"{url!r} names no bucket and prefix; expected {_FORMS}")
    return bucket, prefix


def _pages(
    listing: Listing,
    settings: Settings,
    limits: FetchLimits | None,
    sleep: Callable[[float], None] | None,
) -> Iterator[tuple[Page, str]]:
    """Yield pages with their URLs until one has no token."""
    token: str | None = None
    seen: set[str | None] = set()
    while token not in seen and len(seen) < _MOST_PAGES:
        seen.add(token)
        url = listing.page_url(token)
        page = _page(listing, url, settings, limits, sleep)
        yield page, url
        if page.token is None:
            return
        token = page.token
    if token in seen:
        raise damaged(url, f"the token {token!r} of a next page came before, so it never ends")
    raise damaged(url, f"it has more than {_MOST_PAGES:,} pages")


def _page(
    listing: Listing,
    url: str,
    settings: Settings,
    limits: FetchLimits | None,
    sleep: Callable[[float], None] | None,
) -> Page:
    def read(body: bytes, place: str) -> Page:
        return _check_names(listing.read_page(body, place), listing.prefix, place)

    try:
        return get_document(url, settings, read, limits=limits, sleep=sleep)
    except (NotFoundError, AuthError, NetworkError) as error:
        hint = _hint(error, listing)
        if hint is None:
            raise
        message = f"{listing.place} cannot be listed: {error.message}"
        raise type(error)(message, hint=hint) from error


def _hint(error: OfflineDataError, listing: Listing) -> str | None:
    """Next step after a failure; None where it says all there is to say, as that of offline mode."""
    if type(error) is NetworkError:
        return "; ".join(filter(None, (error.hint, listing.advice)))
    return _ADVICE.get(type(error))


def _check_names(page: Page, prefix: str, url: str) -> Page:
    for listed in page.objects:
        if not listed.name.startswith(prefix):
            raise damaged(url, f"{listed.name!r} is in it, which does not begin with {prefix!r}")
    return page
