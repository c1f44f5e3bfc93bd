"""Section 1 of the catalogue: faults of the connection."""

import asyncio

from tests.hostile.pages import (
    KEEP,
    PAGE,
    Exchange,
    dripping,
    endless,
    fixed,
    hanging,
    page,
    response,
    unasked,
)

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf"

fixed("/ok", response(), keep=True)
fixed("/fin", b"")
fixed("/fin-in-status", b"HTTP/1.1 20")
fixed("/fin-after-status", b"HTTP/1.1 200 OK\r\n")
fixed("/fin-in-headers", b"HTTP/1.1 200 OK\r\nContent-Le")
fixed("/fin-after-continue", b"HTTP/1.1 100 Continue\r\n\r\n")
fixed("/rst", b"", reset=True)
fixed("/rst-in-headers", b"HTTP/1.1 200 OK\r\nContent-Le", reset=True)
fixed("/close-delimited", b"HTTP/1.1 200 OK\r\n\r\n" + PAGE)
fixed("/close-delimited-and-empty", b"HTTP/1.1 200 OK\r\n\r\n")
fixed("/http-1.0", b"HTTP/1.0 200 OK\r\n\r\n" + PAGE)
fixed("/http-1.0-keep-alive", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n" + PAGE)
fixed("/keep-alive-and-fin", response(headers=b"Connection: keep-alive\r\n"))
fixed("/two-at-once", response() + response(b"POISON"))
fixed("/three-at-once", response() + response(b"POISON") * 2)
fixed("/cl-too-long", _HALF)
fixed("/chunks-without-end", _CHUNKED + b"4\r\nhalf\r\n")
hanging("/silent", b"")
hanging("/silent-in-status", b"HTTP/1.1 2")
hanging("/silent-in-headers", b"HTTP/1.1 200 OK\r\nServer: slow\r\n")
hanging("/silent-after-headers", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
hanging("/silent-in-body", _HALF)
hanging("/silent-in-chunks", _CHUNKED + b"4\r\nhalf\r\n")
hanging("/silent-in-chunk", _CHUNKED + b"400\r\nhalf")
hanging("/silent-close-delimited", b"HTTP/1.1 200 OK\r\n\r\nhalf")
hanging("/silent-after-continue", b"HTTP/1.1 100 Continue\r\n\r\n")
hanging(
    "/switching", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
)
hanging("/malformed-chunk-later", _CHUNKED + b"4\r\nhalf\r\n", b"zzz\r\nnot a chunk\r\n")
hanging("/204-and-a-body-later", b"HTTP/1.1 204 No Content\r\n\r\n", b"surprise")
endless("/endless-continue", b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
endless("/endless-hints", b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 500)
endless("/endless-noise", b"", b"\x00\xff\x17noise" * 1000)
endless("/endless-body", b"HTTP/1.1 200 OK\r\n\r\n", b"x" * (1 << 16))
endless("/endless-header", b"HTTP/1.1 200 OK\r\nX: ", b"x" * (1 << 16))
endless("/endless-chunks", _CHUNKED, b"1000\r\n%s\r\n" % (b"x" * 4096) * 16)
dripping("/drip", b"HTTP/1.1 200 OK\r\n\r\n", b"x")
dripping("/drip-in-length", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x")
dripping("/drip-in-header", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x")
dripping("/drip-headers", b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", pace=0.4)
dripping("/drip-chunks", _CHUNKED, b"1\r\nx\r\n")
dripping("/drip-processing", b"", b"HTTP/1.1 102 Processing\r\n\r\n", pace=0.4)
fixed("/http-0.9", b"<html>no status line</html>")
fixed("/icy", b"ICY 200 OK\r\n\r\nmusic")
fixed("/ssh", b"SSH-2.0-OpenSSH_9.6\r\n")
fixed("/smtp", b"220 mail.example.com ESMTP Postfix\r\n")
fixed("/ftp", b"220 (vsFTPd 3.0.3)\r\n")
fixed("/mysql", b"J\x00\x00\x00\x0a8.0.36\x00" + bytes(range(64)))
fixed("/redis", b"-ERR unknown command 'GET'\r\n")
fixed("/tls-alert", b"\x15\x03\x01\x00\x02\x02\x46")
fixed("/http-2-frames", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18) + b"\x00" * 64)
fixed("/noise", bytes((n * 193 + 71) % 256 for n in range(4096)))
fixed("/nuls", bytes(4096))
fixed("/long-noise", b"\xfe" * 300_000)
fixed("/rtsp", b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
fixed("/http-2.0", b"HTTP/2.0 200 OK\r\nContent-Length: 1\r\n\r\nx")
fixed("/http-9.9", b"HTTP/9.9 200 OK\r\nContent-Length: 1\r\n\r\nx")
fixed("/early-hints", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + response(), keep=True)
fixed("/processing", b"HTTP/1.1 102 Processing\r\n\r\n" * 20 + response(), keep=True)
unasked("/poison", response(b"POISON"))
unasked("/poison-in-part", b"HTTP/1.1 200 OK\r\nX-Half:")
unasked("/poison-late", response(b"POISON"), after=0.03)
unasked("/poison-of-100-kib", response(b"POISON" * 17_000))
unasked("/one-byte-too-many", b"\n")
unasked("/408-when-idle", response(b"idle", status="408 Request Timeout"), after=0.03)


@page("/rst-in-body")
async def _rst_in_body(exchange: Exchange) -> object:
    await exchange.send(_HALF)
    await exchange.taken()
    exchange.reset()
    return None


@page("/rst-in-chunks")
async def _rst_in_chunks(exchange: Exchange) -> object:
    await exchange.send(_CHUNKED + b"4\r\nhalf\r\n")
    await exchange.taken()
    exchange.reset()
    return None


@page("/rst-in-close-delimited")
async def _rst_in_close_delimited(exchange: Exchange) -> object:
    await exchange.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
    await exchange.taken()
    exchange.reset()
    return None


@page("/rst-after-body")
async def _rst_after_body(exchange: Exchange) -> object:
    await exchange.send(response())
    await exchange.taken()
    # Let the client read first: a reset discards unread data.
    await exchange.pause(0.05)
    exchange.reset()
    return None


@page("/fin-then-ok")
async def _fin_then_ok(exchange: Exchange) -> object:
    """Hangs up on the first two requests."""
    if exchange.number <= 2:
        return None
    await exchange.send(response())
    return KEEP


@page("/fin-when-idle")
async def _fin_when_idle(exchange: Exchange) -> object:
    """Promises keep-alive, and closes the idle connection."""
    await exchange.send(response())
    await asyncio.sleep(0.3)  # the delay that the page is about
    return None


@page("/rst-when-reused")
async def _rst_when_reused(exchange: Exchange) -> object:
    """Promises keep-alive, and resets the connection at the next request."""
    await exchange.send(response())
    await exchange.reader.read(1)
    exchange.reset()
    return None


@page("/slow-start")
async def _slow_start(exchange: Exchange) -> object:
    """Answers correctly after a delay."""
    await exchange.pause(0.2)
    await exchange.send(response())
    return KEEP


@page("/slow-and-whole")
async def _slow_and_whole(exchange: Exchange) -> object:
    """Sends a whole page a few bytes at a time, within half a second."""
    whole = response(PAGE + b"." * 366)
    for start in range(0, len(whole), 24):
        await exchange.send(whole[start : start + 24])
        await exchange.pause(0.02)
    return None


@page("/whole-and-fin")
async def _whole_and_fin(exchange: Exchange) -> object:
    """Sends five megabytes with the right length, and hangs up at once."""
    await exchange.send(response(PAGE + b"x" * 5_000_000))
    return None
