"""Arrays, numpy scalars and item types out of a pickle, every part of them checked first.

What numpy writes is documented nowhere but in its source: `array_reduce`, `array_setstate`,
`arraydescr_reduce` and `gentype_reduce` of `numpy/core/src/multiarray`, versions 1.2 to 2.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from offline_data.readers.dtypes import array_over, check_shape, check_text, count_bytes
from offline_data.readers.pickle_dtypes import ItemType, numpy_text
from offline_data.readers.pickle_names import Name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.readers.pickle_names import Budget

_NDARRAY = Name("numpy.ndarray")
_DEPTH = 32
"""Object arrays inside each other; numpy frees them recursively, and overflows the C stack."""


class Arrays:
    """The arrays of one pickle, which are first made empty and filled later.

    Args:
        budget: What may be copied.
    """

    def __init__(self, budget: Budget) -> None:
        self._spend = budget.spend
        self._empty: dict[int, NDArray[Any]] = {}
        self._depths: dict[int, tuple[NDArray[Any], int]] = {}

    def names(self) -> dict[tuple[str, str], Name]:
        """Return the names of numpy by module and name, as numpy 1 and 2 write them."""
        made = {("numpy", "ndarray"): _NDARRAY, ("numpy", "dtype"): Name("numpy.dtype", ItemType)}
        for core in ("numpy.core", "numpy._core"):
            for module, name, make in (
                ("multiarray", "_reconstruct", self.empty),
                ("multiarray", "scalar", self.scalar),
                ("numeric", "_frombuffer", self.from_buffer),
            ):
                made[f"{core}.{module}", name] = Name(f"{core}.{module}.{name}", make)
        return made

    def empty(self, kind: object, shape: object, code: object) -> NDArray[Any]:
        """Return an array that `fill` will give its values."""
        if kind is not _NDARRAY:
            raise ValueError("an array is of a class that is not numpy.ndarray")
        if check_shape(shape) != (0,) or numpy_text(code) != b"b":
            raise TypeError
        array: NDArray[Any] = np.ndarray((0,), np.int8)
        self._empty[id(array)] = array
        return array

    def fill(self, array: NDArray[Any], state: object) -> None:
        """Give an array of `empty` its values; it becomes read-only.

        Raises:
            ValueError: The array has values, or the state is not one of an array.
        """
        if id(array) not in self._empty:
            raise ValueError("it sets the state of an array that has its values")
        if type(state) is not tuple or len(state) != 5 or type(state[2]) is not ItemType:
            raise ValueError("the state of an array is no tuple of five with an item type")
        dtype, shape = state[2].dtype, check_shape(state[1])
        if state[0] != 1 or type(state[0]) is not int or type(state[3]) not in {bool, int}:
            raise ValueError("the state of an array is of another version than 1")
        values = self._items if dtype.hasobject else self._raw
        checked: Any = (1, shape, dtype, bool(state[3]), values(array, shape, dtype, state[4]))
        array.__setstate__(checked)
        check_text(array)
        array.flags.writeable = False
        del self._empty[id(array)]

    def check_filled(self) -> None:
        """Raise `ValueError` where an array never got its values."""
        if self._empty:
            raise ValueError("an array never gets its values")

    def scalar(self, kind: object, content: object) -> Any:
        """Return a scalar of numpy; one number is of the byte order of this machine."""
        if type(kind) is not ItemType or kind.dtype.hasobject:
            raise TypeError
        raw = numpy_text(content)
        self._spend(len(raw))
        return array_over(raw, (), kind.dtype)[()]

    def from_buffer(
        self, content: object, kind: object, shape: object, order: object, axes: object = None
    ) -> NDArray[Any]:
        """Return a read-only array over bytes, as protocol 5 writes it."""
        if type(kind) is not ItemType or kind.dtype.hasobject:
            raise TypeError
        if not isinstance(content, (bytes, bytearray)) or order not in ("C", "F", "K"):
            raise TypeError
        array = array_over(content, check_shape(shape), kind.dtype, fortran=order == "F")
        array.flags.writeable = False
        if order != "K":
            return array
        if sorted(check_shape(axes)) != list(range(array.ndim)):
            raise TypeError
        turned: NDArray[Any] = array.transpose(cast("tuple[int, ...]", axes))
        return turned

    def _raw(
        self, _: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], content: object
    ) -> bytes:
        raw = numpy_text(content)
        expected = count_bytes(shape, dtype)
        if len(raw) != expected:
            raise ValueError(
                f"an array {list(shape)} of {dtype} has {len(raw)} bytes, not {expected}"
            )
        self._spend(expected)
        return raw

    def _items(
        self, array: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], items: object
    ) -> list[Any]:
        count = count_bytes(shape, dtype) // dtype.itemsize
        if type(items) is not list or len(items) != count:
            raise ValueError(f"an array {list(shape)} of objects has no list of {count} items")
        self._spend(count)
        depth = 1 + max((self._depth(x) for x in items if isinstance(x, np.ndarray)), default=0)
        if depth > _DEPTH:
            raise ValueError(f"arrays of objects lie more than {_DEPTH} deep in each other")
        self._depths[id(array)] = (array, depth)
        return items

    def _depth(self, array: NDArray[Any]) -> int:
        if id(array) in self._empty:
            raise ValueError("an array of objects holds an array that has no values yet")
        return self._depths.get(id(array), (array, 0))[1]
