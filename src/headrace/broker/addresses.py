"""Addresses of a listener: how they are written, parsed, and whom they are open to."""

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # recognised here, not bound
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_PROTOCOL = "PLAINTEXT"
_PORT_MAX = 65_535
_EXAMPLE = f"for example {_PROTOCOL}://broker.example.com:9092"


def address_text(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address.

    >>> address_text("::1", 9092)
    '[::1]:9092'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parsed_listener(text: str) -> tuple[str, int]:
    """Return host and port of one listener, PROTOCOL://HOST:PORT or HOST:PORT.

    Raises: ValueError with a phrase that says what is wrong.
    """
    if "," in text:
        raise ValueError(f"there is one listener, so one address is expected; {_EXAMPLE}")
    protocol, separator, rest = text.strip().rpartition("://")
    if separator and protocol.upper() != _PROTOCOL:
        raise ValueError(f"{protocol!r} is not supported, only {_PROTOCOL}; {_EXAMPLE}")
    host, colon, port = rest.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if is_bracketed else host
    if not colon or not name or (":" in name) != is_bracketed:
        raise ValueError(f"{text!r} is not {_PROTOCOL}://HOST:PORT; {_EXAMPLE}")
    if not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= _PORT_MAX:
        raise ValueError(f"{port!r} is not a port from 1 to {_PORT_MAX}; {_EXAMPLE}")
    if name in WILDCARDS:
        raise ValueError(f"no client can connect to {name}; give a name or address of this machine")
    return name, int(port)


def listener_fault(text: str) -> str | None:
    """Return what is wrong with a value of advertised.listeners; None when nothing is."""
    try:
        if text:
            parsed_listener(text)
    except ValueError as error:
        return str(error)
    return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a host that is listened on."""
    if host in _LOOPBACK:
        return True
    import ipaddress  # late: the usual start does not need it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
