"""CRC-32C, by the extension module of the package crc32c.

The package itself is not imported: it looks up its own version when it is, which brings in the
reading of package metadata and takes a twentieth of the start of a broker.
"""

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

_PACKAGE = "crc32c"
_EXTENSION = "crc32c._crc32c"


def _loaded() -> Any:
    """The module that has `crc32c` and `hardware_based`. Raises: ImportError."""
    package = PathFinder.find_spec(_PACKAGE)
    if package is not None:
        spec = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    import crc32c  # another layout of the package, or none of it: then this says so

    return crc32c


_module = _loaded()
crc32c = _module.crc32c
