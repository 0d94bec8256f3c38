"""The compiled gather, left out where there is no C compiler; all else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "offline_data.buffers._gather",
            ["offline_data/buffers/_gather.c"],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
            define_macros=[("_POSIX_C_SOURCE", "200809L")],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
