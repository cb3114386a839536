"""Requesting a consistent cut of a broker's data folder.

Source: CutDataFolder (20930) of Headrace, see `wire/data_folder_cut.py`.
"""

from headrace.client.connection import Cluster
from headrace.client.own_apis import ask_own
from headrace.wire.data_folder_cut import (
    KEY,
    VERSION,
    CutDataFolderRequest,
    CutDataFolderResponse,
)


def cut_data_folder(cluster: Cluster, name: str) -> None:
    """Have the broker fill the folder `.backup/<name>` of its data folder.

    Raises: `BrokerError` 42 and 56; `Unsupported` on any other broker than Headrace; otherwise as
    `Cluster`.
    """
    request = CutDataFolderRequest(name)
    what = "cutting the data folder"
    cluster.retrying(what, lambda: cluster.offers(KEY, VERSION))  # the cut itself is not repeated
    ask_own(cluster, None, (KEY, VERSION), request, CutDataFolderResponse, what)
