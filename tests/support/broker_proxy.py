"""A TCP proxy before a broker: a longer way to it, and single processes can be cut off from it."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import psutil

from tests.support.ports import free_port

CHUNK_BYTES = 256 * 1024


class BrokerProxy:
    """Passes connections on to 127.0.0.1:`target`, each way `delay_s` later, from a thread with a loop of its own."""

    def __init__(self, target: int, token: str, delay_s: float = 0.0) -> None:
        self._target = target
        self._delay_s = delay_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: dict[int, asyncio.WriteTransport] = {}
        """By the port that the process connected from."""
        self._cut: set[int] = set()
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.token = token

    def start(self) -> None:
        """Listens."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        """Ends every connection."""
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(10)

    def cut(self, pid: int) -> None:
        """Takes the broker away from a process, until `mend`."""
        self._loop.call_soon_threadsafe(self._cut_now, pid)

    def mend(self, pid: int) -> None:
        """Lets a process reach the broker again."""
        self._loop.call_soon_threadsafe(self._cut.discard, pid)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def _end(self) -> None:
        self._server.close()
        for transport in list(self._open.values()):
            transport.abort()
        self._loop.call_later(0.1, self._loop.stop)

    def _cut_now(self, pid: int) -> None:
        self._cut.add(pid)
        for port in _ports(pid):
            if transport := self._open.get(port):
                transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        if any(port in _ports(pid) for pid in self._cut):
            writer.transport.abort()
            return
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open[port] = writer.transport
        try:
            await asyncio.gather(self._pass(reader, onward), self._pass(there, writer))
        finally:
            self._open.pop(port, None)
            writer.transport.abort()
            onward.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if self._delay_s:
                    self._loop.call_later(self._delay_s, sink.write, data)
                    continue
                sink.write(data)
                await sink.drain()
        sink.transport.abort()


def _ports(pid: int) -> set[int]:
    """The ports that a process connects from; none once it has ended."""
    try:
        return {each.laddr.port for each in psutil.Process(pid).net_connections("tcp4") if each.laddr}
    except psutil.Error:
        return set()
