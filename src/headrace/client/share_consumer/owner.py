"""What a share session needs of the consumer around it: demand, a place for records, an ear."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.client.connection import Address
from headrace.client.errors import ClientError
from headrace.client.share_consumer.hand import Hand, Listener
from headrace.client.share_consumer.parcels import Parcel
from headrace.client.share_consumer.records import BaseRecord
from headrace.client.share_consumer.words import Place

if TYPE_CHECKING:
    from headrace.client.share_consumer.session import Session


class Owner(Listener, Protocol):
    """The consumer, as its sessions see it."""

    @property
    def fetching(self) -> int:
        """How many sessions fetch in turn."""

    def demand(self, session: "Session") -> int:
        """How many records this session is to fetch now; 0 for none."""

    def turn_over(self) -> None:
        """A session has fetched, or cannot; another's turn may come."""

    def make(self, hand: Hand, place: Place, found: Any) -> BaseRecord | None:
        """A record for users; None when its topic is not known any more."""

    def arrived(self, records: Sequence[BaseRecord]) -> None:
        """These were acquired."""

    def due(self, hand: Hand) -> dict[Place, Parcel]:
        """What is to be renewed now; what nobody asks for any more is given back instead."""

    def stale(self) -> None:
        """Leaders are to be looked up again."""

    def lost(self) -> None:
        """The connection ended, and with it every lock."""

    def crowded(self, address: Address) -> None:
        """A broker has no room for another session; it is asked again."""

    def failed(self, error: ClientError) -> None:
        """The consumer cannot go on."""

    async def renewal_is_off(self) -> bool:
        """Whether the group's settings say so."""
