"""The compiled parts, left out where there is no C compiler, and where the packages lie.

All else is in pyproject.toml.
"""

from pathlib import Path

from setuptools import Extension, setup

LINKED = Path(__file__).with_name("offline_data_cli").is_dir()
"""Whether the link to `cli` is here; an archive may have been unpacked without it.

With it both packages lie in one folder, and setuptools writes an editable install as that path.
Without, it writes an import hook, and type checkers do not follow one.
"""


def compiled(folder: str, name: str, *headers: str) -> Extension:
    """Describe a module of one C file and its own headers, on CPython's stable ABI."""
    return Extension(
        f"{folder.replace('/', '.')}.{name}",
        [f"{folder}/{name}.c"],
        depends=[f"{folder}/{header}.h" for header in headers],
        extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
        define_macros=[("_POSIX_C_SOURCE", "200809L")],
        libraries=["m"],
        py_limited_api=True,
        optional=True,
    )


setup(
    package_dir={"": "."} if LINKED else {"offline_data_cli": "cli"},
    ext_modules=[
        compiled("offline_data/buffers/gather", "_gather", "_leaves", "_pages", "_tiles"),
        compiled("offline_data/buffers", "_sum_tree"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
