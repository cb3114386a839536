"""What is taken from kio: the schemas of Kafka's messages; `error_codes` takes the rest.

Its own look-up, `kio.index`, is not used: it imports what reads and writes messages, which is done
in `codec`.
"""

import sys
from pkgutil import resolve_name
from typing import Any

# Where hypothesis is installed, kio imports it for its own tests, which takes as long as the start
# of a whole broker: unless somebody wants it here, kio is told that there is none.
_wanted = sys.modules.get("hypothesis")
if _wanted is None:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # how imports are told "absent"
try:
    import kio.static.primitive  # noqa: F401  # which asks for hypothesis
    from kio.schema.index import api_key_map, schema_name_map
    from kio.static.constants import EntityType
finally:
    if _wanted is None:
        del sys.modules["hypothesis"]

__all__ = ["has_schema", "load_request_schema", "load_response_schema"]


def has_schema(key: int, version: int) -> bool:
    """Return whether Kafka has a request of this API and version."""
    name = api_key_map.get(key)
    return name is not None and EntityType.request in schema_name_map[name].get(version, {})


def load_request_schema(key: int, version: int) -> Any:
    """Import the dataclass of a request. Raises: KeyError when there is none."""
    return resolve_name(schema_name_map[api_key_map[key]][version][EntityType.request])


def load_response_schema(key: int, version: int) -> Any:
    """Import the dataclass of a response. Raises: KeyError when there is none."""
    return resolve_name(schema_name_map[api_key_map[key]][version][EntityType.response])
