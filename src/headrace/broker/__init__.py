"""The server: frames in, handlers, shards and logs behind them."""
