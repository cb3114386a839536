"""Topics for tests, on a broker under test and on one that runs elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import count

from headrace.client.admin_client import SyncAdmin

CLIENT_ID = "headrace-testing"  # no fault hits it, or a test of faults could not set itself up


class CreatesTopics(ABC):
    """What tests ask of any broker: its address, and topics."""

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """Host and port for clients, as their setting `bootstrap.servers` wants them."""

    def create_topic(
        self,
        name: str | None = None,
        partitions: int | None = 1,
        config: Mapping[str, object] | None = None,
        *,
        configs: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic that can be used at once; its name, one of its own when none is given.

        It has as many partitions as the broker gives when that is None. `configs` are its settings,
        as in `Admin.create_topic`; `config` is another name for it.

        Raises: ValueError when both are given; `headrace.BrokerError`, whose message says what is
        wrong.
        """
        if config is not None and configs is not None:
            raise ValueError("configs and config are the same argument: give one of them")
        settings = {key: str(value) for key, value in (configs or config or {}).items()}
        with SyncAdmin(self.bootstrap_servers, client_id=CLIENT_ID) as admin:
            if name is not None:
                admin.create_topic(name, partitions, configs=settings)
                return name
            for one in self._names:
                if admin.create_topic(one, partitions, configs=settings, exist_ok=True):
                    return one
        raise AssertionError("names never end")

    @cached_property
    def _names(self) -> Iterator[str]:
        return (f"topic-{number}" for number in count(1))


class ExternalBroker(CreatesTopics):
    """A broker that runs elsewhere, Kafka in a container say, for the same tests.

    Args:
        bootstrap_servers: its address.

    It has neither `clock` nor `faults`: pytest skips tests that ask for them.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    @property
    def bootstrap_servers(self) -> str:
        return self._bootstrap_servers
