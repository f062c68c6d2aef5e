"""stub"""

from __future__ import annotations

from gemlet.serve.frontend.service import Service


class GrpcServer:
    def __init__(self, service: Service) -> None: ...
    async def listen(self, host: str, port: int) -> int:
        return 0

    async def close(self) -> None: ...
