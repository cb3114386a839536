"""Flights into the topic `flights`, among them some rubbish and some that come twice."""

from argparse import ArgumentParser
from itertools import chain, islice

from headrace.demo.flights import payloads
from headrace.demo.producing import create_topic, produce


def main() -> None:
    """Create the topic and fill it."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="host:port of a broker")
    parser.add_argument("--flights", type=int, default=20_000, help="how many")
    given = parser.parse_args()
    create_topic(given.bootstrap, "flights", 2)
    twice = islice(payloads(1, given.flights), given.flights // 20)
    everything = chain(payloads(1, given.flights), twice)
    done = produce(given.bootstrap, "flights", everything, lambda confirmed: print(confirmed))
    print(f"{done.confirmed} records")


if __name__ == "__main__":
    main()
