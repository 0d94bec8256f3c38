"""The compiled parts, which are not built without a C compiler.

All else is in pyproject.toml.
"""

from setuptools import Extension, setup


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
    ext_modules=[
        compiled("offline_data/buffers/gather", "_gather", "_leaves", "_pages", "_tiles"),
        compiled("offline_data/buffers", "_sum_tree"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
