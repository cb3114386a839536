"""Builds the compiled kernel, for every Python from 3.11 on; without a compiler there is none.

HEADRACE_PURE=1 builds the wheel `py3-none-any`, which has no kernel. All else is in pyproject.toml.
"""

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

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


class Wheel(bdist_wheel):
    """Names a wheel by what is inside: without a compiler the kernel is left out."""

    def get_tag(self) -> tuple[str, str, str]:
        built = Path(self.get_finalized_command("build").build_lib)  # type: ignore[attr-defined]  # untyped
        suffixes = ("so", "pyd")
        if any(found for one in suffixes for found in built.glob(f"headrace/wire/*.{one}")):
            return super().get_tag()
        return "py3", "none", "any"


kernel = extensions()
setup(
    cmdclass={"bdist_wheel": Wheel},
    ext_modules=kernel,
    options={
        "bdist_wheel": {"py_limited_api": "cp311"},
        "build_ext": {"parallel": os.cpu_count() or 1},
    }
    if kernel
    else {},
)
