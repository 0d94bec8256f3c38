"""The compiled parts, which are not built without a C compiler, and README.md as PyPI shows it.

All else is in pyproject.toml.
"""

import re
from pathlib import Path

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


def readme() -> str:
    """Return README.md with complete addresses: PyPI has no files for relative ones."""
    project = Path("pyproject.toml").read_text(encoding="utf-8")
    (repository,) = re.findall(r'^Repository = "(.+)"$', project, re.MULTILINE)
    text = Path("README.md").read_text(encoding="utf-8")
    relative = r"(?![a-z]+:|[#/])"
    shown = rf'(!\[[^]]*\]\(|\bsrc(?:set)?="){relative}'
    text = re.sub(shown, rf"\1{repository}/raw/main/", text)
    return re.sub(rf'(\]\(|\bhref="){relative}', rf"\1{repository}/blob/main/", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[
        compiled("offline_data/rows/gather", "_gather", "_leaves", "_pages", "_tiles"),
        compiled("offline_data/rows/samplers", "_sum_tree"),
        compiled("offline_data/store", "_compare"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
