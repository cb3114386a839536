"""What is taken from kio: the schemas of Kafka's messages, and its error codes.

All of kio that the product uses is imported here.
"""

import sys

# Where hypothesis is installed, kio imports it for its own tests, which takes as long as the start
# of a whole broker: unless somebody wants it here, kio is told that there is none.
_wanted = sys.modules.get("hypothesis")
if _wanted is None:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # how imports are told "absent"
try:
    from kio.index import load_request_schema, load_response_schema
    from kio.schema.errors import ErrorCode
    from kio.schema.index import api_key_map, schema_name_map
    from kio.static.constants import EntityType
finally:
    if _wanted is None:
        del sys.modules["hypothesis"]

__all__ = [
    "EntityType",
    "ErrorCode",
    "api_key_map",
    "load_request_schema",
    "load_response_schema",
    "schema_name_map",
]
