"""CutDataFolder (20930): a consistent view of the data folder; see `broker/data_folder_cut.py`."""

from headrace.broker.data_folder_cut import CutError, cut
from headrace.broker.errors import Code
from headrace.broker.request import Answer, Raw, Request
from headrace.broker.services import Services
from headrace.wire import data_folder_cut as wire
from headrace.wire.primitives import Reader, Writer


async def handle(request: Request, services: Services) -> Answer:
    asked = wire.CutDataFolderRequest.read(Reader(request.body))
    try:
        await cut(services, asked.name)
        response = wire.CutDataFolderResponse(Code.NONE, None)
    except CutError as error:
        response = wire.CutDataFolderResponse(Code.INVALID_REQUEST, str(error))
    except OSError as error:
        response = wire.CutDataFolderResponse(Code.STORAGE_ERROR, error.strerror or str(error))
    out = Writer()
    response.write(out)
    return Raw([out.data])
