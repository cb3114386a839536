"""Builds the compiled kernel, for every Python from 3.11 on; without a compiler there is none.

HEADRACE_PURE=1 builds the wheel `py3-none-any`, which has no kernel. All else is in pyproject.toml.
"""

import os
import sys

from setuptools import Extension, setup

LIMITED_API = 0x030B0000
KERNEL = ("_codec", "_codec_encode", "_codec_json", "_codec_json_times")


def extensions() -> list[Extension]:
    if os.environ.get("HEADRACE_PURE") == "1":
        return []
    try:
        from Cython.Build import cythonize

        found = cythonize(
            [
                Extension(
                    f"headrace.wire.{name}",
                    [f"src/headrace/wire/{name}.py"],
                    define_macros=[("Py_LIMITED_API", hex(LIMITED_API))],
                    py_limited_api=True,
                    extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-g0"],
                )
                for name in KERNEL
            ]
        )
    except Exception as error:  # whatever fails here, numpy does the work
        print(f"headrace: no compiled kernel: {error}", file=sys.stderr)
        return []
    for one in found:
        one.optional = True  # cythonize would drop it
    return list(found)


kernel = extensions()
setup(
    ext_modules=kernel,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if kernel else {},
)
