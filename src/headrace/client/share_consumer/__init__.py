"""A consumer of share groups over Kafka's protocol: `headrace.ShareConsumer`, and its sync face.

From below: `stream` is a connection, `wire` makes requests and reads answers, `hand` knows what is
held and what was said of it, `session` speaks with one broker, `member` with the coordinator,
`outcomes` tells what became of it, `engine` puts them together, `handlers` calls what users give to
`run`, `consumer` and `sync` are what they see.
"""
