"""The wheel's tag: a wheel without the compiled kernel does not claim a platform."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import setuptools  # type: ignore[import-untyped]  # has no stubs

SETUP = Path(__file__).parents[1] / "setup.py"


@pytest.mark.parametrize("kernel", [True, False])
def test_a_wheel_is_named_by_what_is_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
) -> None:
    monkeypatch.setenv("HEADRACE_PURE", "1")  # nothing is compiled here
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    spec = importlib.util.spec_from_file_location("headrace_setup", SETUP)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    distribution = setuptools.Distribution({"name": "headrace"})
    distribution.ext_modules = [setuptools.Extension("headrace.wire._codec", [])]
    distribution.get_command_obj("build").build_lib = str(tmp_path)
    wheel = module.Wheel(distribution)
    wheel.py_limited_api = "cp311"
    wheel.ensure_finalized()
    package = tmp_path / "headrace" / "wire"
    package.mkdir(parents=True)
    (package / "_codec.py").touch()
    if kernel:
        (package / "_codec.abi3.so").touch()
    tag = wheel.get_tag()
    assert (tag == ("py3", "none", "any")) is not kernel
    assert (tag[1] == "abi3") is kernel
