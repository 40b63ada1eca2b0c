"""Builds the extension; all else is in pyproject.toml.

One wheel for each version of Python: where an op was called from is read from the interpreter's own
frames, which differ between versions and are no part of the stable ABI.
"""

from pathlib import Path

from setuptools import Extension, setup

VERSION = "0.1.0"
SOURCES = Path("src")

setup(
    version=VERSION,
    packages=[],
    ext_modules=[
        Extension(
            "whystuck_native",
            sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            define_macros=[("WHYSTUCK_NATIVE_VERSION", f'"{VERSION}"')],
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
        )
    ],
)
