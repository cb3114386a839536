"""The command line: a skin over the client; `serve` composes a server."""
