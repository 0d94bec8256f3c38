from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps import images as blocks
from offline_data.preprocess.steps.images import (
    Format,
    Images,
    ImageStep,
    SizedImageStep,
    by_block,
    looks_like_images,
)
from offline_data.preprocess.steps.images import formats_of as read
from offline_data.preprocess.steps.parse import check_whole
from offline_data.testing.pieces import toy_piece, with_leaves


@dataclass(frozen=True)
class Darken(SizedImageStep):
    """Half the values; sizes only so that they can be read."""

    name: ClassVar[str] = "darken"
    example: ClassVar[str] = "darken:84,observation.pixels"

    height: int = 0
    width: int | None = None
    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    format: Format | None = None

    def __post_init__(self) -> None:
        self.check_leaves()
        check_whole(type(self), "height", self.height, 0)

    def change(self, images: Images) -> NDArray[Any]:
        return np.asarray(images.values // 2)


class Colours(Darken):
    formats: ClassVar[tuple[Format, ...]] = ("hwc", "chw")


def leaf(*shape: int, dtype: str = "uint8", rows: int = 3) -> NDArray[Any]:
    return np.arange(1, rows * int(np.prod(shape)) + 1).reshape(rows, *shape).astype(dtype)


def pixels(**observations: NDArray[Any]) -> Piece:
    return with_leaves(
        toy_piece([2]), observations={f"observation.{k}": v for k, v in observations.items()}
    )


def found(piece: Piece, step: ImageStep) -> dict[str, Format]:
    return {"/".join(one.key): one.format for one in step.images(piece)}


@pytest.mark.parametrize(
    ("shape", "formats"),
    [
        ((84, 84), ("hw",)),
        ((8, 8), ("hw",)),
        ((7, 84), ()),
        ((84, 7), ()),
        ((84, 84, 3), ("hwc",)),
        ((84, 84, 1), ("hwc",)),
        ((84, 84, 2), ("hwc",)),
        ((4, 84, 84, 3), ("hwc",)),
        ((2, 4, 84, 96, 3), ("hwc",)),
        ((3, 84, 84), ("chw",)),
        ((1, 84, 84), ("chw",)),
        ((4, 3, 84, 84), ("chw",)),
        ((4, 84, 84), ("chw", "hw")),
        ((5, 84, 84), ("chw", "hw")),
        ((9, 84, 84), ("hwc", "chw", "hw")),
        ((84, 84, 9), ("hwc", "chw", "hw")),
        ((7, 7, 3), ()),
        ((84, 3, 3), ()),
        ((3, 84, 3), ()),
        ((84, 84, 0), ()),
        ((0, 84, 84), ()),
        ((300,), ()),
        ((), ()),
    ],
)
def test_formats_a_shape_may_have(shape: tuple[int, ...], formats: tuple[str, ...]) -> None:
    assert read(shape) == formats


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (leaf(8, 9), True),
        (leaf(5, 8, 9), True),
        (leaf(8, 9, 10), True),
        (leaf(8, 9, 2), True),
        (leaf(7, 9), False),
        (leaf(8, 9, 3, dtype="float32"), True),
        (leaf(3, 8, 9, dtype="float64"), True),
        (leaf(4, 8, 9, dtype="float16"), True),
        (leaf(8, 9, dtype="float32"), False),
        (leaf(8, 9, 2, dtype="float32"), False),
        (leaf(5, 8, 9, dtype="float32"), False),
        (leaf(8, 9, 10, dtype="float32"), False),
        (leaf(8, 9, 3, dtype="int32"), False),
        (leaf(8, 9, 3, dtype="bool"), False),
    ],
)
def test_what_is_taken_for_an_image(values: NDArray[Any], expected: bool) -> None:
    assert looks_like_images(values) is expected


@pytest.mark.parametrize(
    ("form", "shape"),
    [("hwc", (2, 8, 9, 3)), ("chw", (2, 3, 8, 9)), ("hw", (2, 3, 8, 9))],
)
def test_sides_of_images(form: Format, shape: tuple[int, ...]) -> None:
    images = Images(("observation", "eye"), leaf(*shape), form)
    channels = 1 if form == "hw" else 3
    assert (images.height, images.width, images.channels) == (8, 9, channels)
    assert str(images) == f"'observation/eye' (uint8 {list(shape)})"


def test_without_names_all_images_are_meant() -> None:
    piece = pixels(
        eye=leaf(8, 9, 3), depth=leaf(8, 9), points=leaf(64, 3, dtype="float32"), small=leaf(5, 5)
    )
    piece = with_leaves(piece, steps={"action.picture": leaf(3, 8, 9, rows=2)})
    every = {"observation/eye": "hwc", "observation/depth": "hw", "action/picture": "chw"}
    assert found(piece, Darken()) == every
    assert found(piece, Darken(format="hwc")) == {"observation/eye": "hwc"}
    assert found(piece, Colours()) == {"observation/eye": "hwc", "action/picture": "chw"}


def test_a_beginning_means_the_images_below_it() -> None:
    piece = pixels(eye=leaf(8, 9, 3), depth=leaf(8, 9))
    assert found(piece, Darken(keys=("observation",))) == {
        "observation/eye": "hwc",
        "observation/depth": "hw",
    }
    assert found(piece, Darken(keys=("next.observation.eye", "obs.depth"))) == {
        "observation/eye": "hwc",
        "observation/depth": "hw",
    }
    more = with_leaves(piece, observations={"info.more": leaf(2)})
    with pytest.raises(StepError, match=r"finds no image for it among 'info/code' \(int64 \[1\]"):
        Darken(keys=("observation", "info")).images(more)


def test_a_name_means_its_leaf_whatever_it_is() -> None:
    piece = pixels(tiny=leaf(5, 6, 3, dtype="int64"))
    named = Darken(keys=("observation.tiny",), format="hwc")
    assert found(piece, named) == {"observation/tiny": "hwc"}
    with pytest.raises(StepError, match=r"'observation/tiny' \(int64 \[5, 6, 3\]\) does not") as e:
        Darken(keys=("observation.tiny",)).images(piece)
    assert e.value.hint == "format=hwc, chw or hw reads its last axes so"


def test_an_unclear_order_is_asked_for() -> None:
    piece = pixels(frames=leaf(9, 8, 8))
    for keys in ((), ("observation",), ("observation.frames",)):
        with pytest.raises(StepError, match=r"\(uint8 \[9, 8, 8\]\) may be hwc or chw or hw") as e:
            Darken(keys=keys).images(piece)
        assert e.value.hint == "say which with format=…, or name other leaves"
    for form in blocks.FORMATS:
        assert found(piece, Darken(format=form)) == {"observation/frames": form}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Darken(), r"finds no image for it among .*'action' \(float32 \[3\]\)"),
        (Darken(keys=("action",)), r"leaf 'action' \(float32 \[3\]\) does not look like an image"),
        (Darken(keys=("action",), format="hw"), "too few axes for format=hw"),
        (Darken(keys=("observation.void",), format="hw"), "or an empty one"),
        (Darken(keys=("mission",)), "leaf 'mission' is text, not an image"),
        (Darken(keys=("words",), format="hw"), "leaf 'words' is text, not an image"),
        (Darken(keys=("pixel",)), "No leaf is called 'pixel'"),
        (Colours(keys=("observation.depth",)), "has no axis of channels; expected hwc or chw"),
    ],
)
def test_what_is_no_image_is_refused(step: ImageStep, message: str) -> None:
    piece = with_leaves(
        pixels(void=leaf(0, 9)),
        observations={"words": leaf(8, 8, dtype="int32")},
        words={"words": ["one", "two"]},
    )
    if "depth" in str(step.keys):
        piece = with_leaves(piece, observations={"observation.depth": leaf(8, 9)})
    with pytest.raises(StepError, match=message):
        step.apply(piece)


def test_text_is_never_taken_for_an_image() -> None:
    piece = with_leaves(pixels(eye=leaf(8, 8)), words={"observation.eye": ["a"]})
    assert piece.words.keys() == {("mission",)}  # codes are int32, so bytes have no words
    assert found(piece, Darken()) == {"observation/eye": "hw"}


def test_only_the_images_change() -> None:
    piece = pixels(eye=leaf(8, 9, 3))
    result = Darken().apply(piece)
    for key, old in {**piece.batch.steps, **piece.batch.observations}.items():
        new = {**result.batch.steps, **result.batch.observations}[key]
        expected = old // 2 if key == ("observation", "eye") else old
        np.testing.assert_array_equal(new, expected)
    assert list(result.batch.observations) == list(piece.batch.observations)
    assert result.words == piece.words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("84", {"height": 84}),
        ("84,96", {"height": 84, "width": 96}),
        ("84,obs.eye", {"height": 84, "keys": ("obs.eye",)}),
        ("84, 96, obs.eye, info", {"height": 84, "width": 96, "keys": ("obs.eye", "info")}),
        ("height=84,obs.eye", {"height": 84, "keys": ("obs.eye",)}),
        ("obs.eye,height=84,format=hw", {"height": 84, "format": "hw", "keys": ("obs.eye",)}),
        ("84,width=96", {"height": 84, "width": 96}),
        ("84,96,keys=obs.eye,info", {"height": 84, "width": 96, "keys": ("obs.eye", "info")}),
        ("84,96,7", {"height": 84, "width": 96, "keys": ("7",)}),
    ],
)
def test_sizes_then_leaves_are_read(text: str, expected: dict[str, Any]) -> None:
    assert Darken.parse(text) == Darken(**expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("84,height=5", "is given height twice"),
        ("84,heigth=5", "has no 'heigth'; did you mean 'height'"),
        ("84,a=b", "has no 'a'"),
        ("84,format=whc", "has format=whc; expected hwc, chw, hw"),
        ("height=8.5", r"has height=8\.5; expected a whole number"),
        ("height=-1", "has height=-1;"),
        ("height=true", "has height=true; expected a whole number"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Darken.parse(text)
    assert error.value.hint == "for example --step darken:84,observation.pixels"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keys": "observation"}, "has keys='observation'; expected a tuple of names"),
        ({"height": True}, "has height=True; expected a whole number, 0 or more"),
        ({"height": 8.0}, r"has height=8\.0; expected a whole number, 0 or more"),
    ],
)
def test_fields_that_cannot_be_meant(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Darken(**fields)


@pytest.mark.parametrize(("row_bytes", "most"), [(1, 7), (100, 3), (150, 2), (301, 1), (0, 7)])
def test_blocks_are_bounded(row_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 300)
    seen: list[int] = []

    def fill(values: NDArray[Any], out: NDArray[Any]) -> None:
        seen.append(len(values))
        out[...] = values[:, None] * 0.5

    result = by_block(leaf(rows=7), (2,), np.dtype(np.float16), row_bytes, fill)
    assert result.dtype == np.float16
    assert result.tolist() == [[v / 2, v / 2] for v in range(1, 8)]
    assert max(seen) == most
    assert sum(seen) == 7
