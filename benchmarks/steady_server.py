"""A server whose answers have known times, to compare load generators: python -m benchmarks.steady_server PORT

Any completion has its first token after a second, then one every 50 ms, as many as it asks for, and a usage of 64 and
that many tokens; /v1/models names "any". Times are kept from the request on, so a late timer delays one token only.
"""

import asyncio
import json
import sys
from typing import Any

FIRST_S, GAP_S = 1.0, 0.05


async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    number = body["max_tokens"]
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    now = asyncio.get_running_loop().time
    due = now() + FIRST_S
    usage = {"prompt_tokens": 64, "completion_tokens": number, "total_tokens": 64 + number}
    for _ in range(number):
        await asyncio.sleep(max(0, due - now()))
        due += GAP_S
        writer.write(event(choices=[{"index": 0, "text": " w", "finish_reason": None}]))
    writer.write(event(choices=[{"index": 0, "text": "", "finish_reason": "length"}]))
    writer.write(event(choices=[], usage=usage) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def event(**fields: Any) -> bytes:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "any"}
    return chunk(b"data: " + json.dumps(head | fields).encode() + b"\n\n")


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            length = 0
            while (header := await reader.readline()).strip():
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            body = json.loads(await reader.readexactly(length)) if length else {}
            if b"completions" in line:
                await answer(body, writer)
            else:
                models = b'{"object": "list", "data": [{"id": "any", "object": "model"}]}'
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(models)}\r\n\r\n"
                writer.write(head.encode() + models)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the client has left
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(talk, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
