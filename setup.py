"""Builds the compiled kernel, for every Python from 3.11 on; without a compiler there is none.

HEADRACE_PURE=1 builds the wheel `py3-none-any`, which has no kernel. All else is in pyproject.toml.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

LIMITED_API = 0x030B0000
KERNEL = ("_codec", "_codec_encode", "_codec_json", "_codec_json_times")


def compile_args(name: str) -> list[str]:
    if sys.platform == "win32":
        return []
    args = ["-O3", "-g0"]
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    if name == "_codec" and sys.platform == "linux" and "gcc" in compiler:
        # Lengths of varints are predictable. Conditional moves in place of branches make every
        # field of a record wait for the one before it: validating takes twice as long.
        args += ["-fno-if-conversion", "-fno-ssa-phiopt"]
    return args


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
                    extra_compile_args=compile_args(name),
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
