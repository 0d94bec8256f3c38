"""What a step for images is: it finds its leaves, reads its arguments, and changes each image."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

from offline_data.episodes.fields import join_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import check_whole, read_arguments, usage_error
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.images import (
    FORMATS,
    LEAST_SIDE,
    Images,
    looks_like_images,
    readings,
    said,
)
from offline_data.preprocess.steps.leaves import column, leaves, matching, replaced

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.piece import Piece
    from offline_data.preprocess.steps.images import Format


class ImageStep(Step):
    """A step that changes every image on its own; subclasses have the fields, and `change`."""

    example: ClassVar[str]
    """How it is called, for messages."""
    formats: ClassVar[tuple[Format, ...]] = FORMATS
    """Formats it can work with."""

    keys: tuple[str, ...]
    """Leaves, see `image_columns`; none: all that look like images."""
    format: Format | None
    """How rows are read; None: by their shape, see `readings`."""

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with the images changed."""
        found = image_columns(piece, self)
        return replaced(piece, {images.key: self.change(images) for images in found})

    def change(self, images: Images) -> NDArray[Any]:
        """Return `[n, …]` new images, a view or a new array.

        Raises:
            StepError: It cannot be done with images like these.
        """
        raise NotImplementedError

    def distinct(self, form: Format) -> object:
        """Return what counts in a format; a row may have several where it is equal in all."""
        return form

    def check_leaves(self) -> None:
        """Refuse keys that are no tuple, and a format there is not, with `UsageError`."""
        if not isinstance(self.keys, tuple):
            raise usage_error(type(self), f"has keys={self.keys!r}; expected a tuple of names")
        if self.format is not None and self.format not in FORMATS:
            formats = ", ".join(FORMATS)
            raise usage_error(type(self), f"has format={self.format}; expected {formats}")

    def check_pixels(self, name: str, least: int, *, needed: bool = False) -> None:
        """Refuse a field that is not a whole number from `least` on, nor None unless needed."""
        value = getattr(self, name)
        if needed or value is not None:
            check_whole(type(self), name, value, least)


def image_columns(piece: Piece, step: ImageStep) -> list[Images]:
    """Return the columns a step is about, in the order of the piece.

    Without names these are all that look like images and have a format of the step. A name that
    stands for several leaves means those among them; one that stands for a single leaf means it,
    whatever it looks like where the step's `format` is given.

    Raises:
        StepError: No such leaf, one that is no image, or one whose format is not clear.
    """
    every = leaves(piece)
    groups = [matching(piece, [name]) for name in step.keys] if step.keys else [every]
    chosen: set[Key] = set()
    for group in groups:
        named = bool(step.keys) and len(group) == 1
        found = group if named else [key for key in group if _is_one(piece, key, step)]
        if not found:
            listed = ", ".join(said(key, column(piece, key)) for key in group)
            raise StepError(
                f"Step {step.name!r} finds no image for it among {listed}",
                hint="name a leaf and say how its rows are read: format=hwc, chw or hw",
            )
        chosen.update(found)
    return [_read(piece, key, step) for key in every if key in chosen]


def read_sized(step: type[ImageStep], text: str) -> dict[str, Any]:
    """Read `HEIGHT[,WIDTH][,KEY…][,k=v…]` into the fields of a step.

    Raises:
        UsageError: An argument is missing, unknown or malformed; the hint shows an example.

    Example:
        >>> from offline_data.preprocess.steps.crop import Crop
        >>> read_sized(Crop, "84,observation.pixels,top=0")
        {'height': 84, 'top': 0, 'keys': ('observation.pixels',)}
    """
    parts = [part.strip().removeprefix("keys=") for part in text.split(",")]
    named = [part for part in parts if "=" in part]
    unnamed = [part for part in parts if part and "=" not in part]
    sizes = list(takewhile(str.isdecimal, unnamed))[:2]
    sides = [f"{side}={size}" for side, size in zip(("height", "width"), sizes, strict=False)]
    values = read_arguments(step, ",".join([*sides, *named]))
    keys = tuple(unnamed[len(sizes) :])
    return {**values, "keys": keys} if keys else values


def _is_one(piece: Piece, key: Key, step: ImageStep) -> bool:
    values = column(piece, key)
    fit = set(readings(values.shape[1:])) & set(step.formats)
    return (
        key not in piece.words
        and looks_like_images(values)
        and (step.format in fit if step.format else bool(fit))
    )


def _read(piece: Piece, key: Key, step: ImageStep) -> Images:
    values = column(piece, key)
    what = f"Step {step.name!r}: leaf {said(key, values)}"
    if key in piece.words:
        raise StepError(f"Step {step.name!r}: leaf {join_key(key)!r} is text, not an image")
    if step.format is not None:
        if values.ndim <= len(step.format) or 0 in values.shape[1:]:
            raise StepError(f"{what} has too few axes for format={step.format}, or an empty one")
        possible: tuple[Format, ...] = (step.format,)
    else:
        possible = readings(values.shape[1:])
    if not possible:
        raise StepError(
            f"{what} does not look like an image: expected two sides of {LEAST_SIDE} or more, and "
            "no other axis behind them than channels",
            hint="format=hwc, chw or hw reads its last axes so" if values.ndim > 2 else None,
        )
    if len({step.distinct(form) for form in possible}) > 1:
        raise StepError(
            f"{what} may be {' or '.join(possible)}",
            hint="say which with format=…, or name other leaves",
        )
    if possible[0] not in step.formats:
        raise StepError(f"{what} has no axis of channels; expected {' or '.join(step.formats)}")
    return Images(key, values, possible[0])
