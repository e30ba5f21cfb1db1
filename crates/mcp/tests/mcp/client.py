"""Calls `outpost mcp` with the `mcp` package and prints one JSON line per step. The test answers the broker's prompts.

Usage: client.py MODE OUTPOST SOCKET, where MODE is `legacy` (with `initialize`), a protocol version without a handshake, or `auto`.
"""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters


def emit(step, **fields):
    print(json.dumps({"step": step, **fields}), flush=True)


def result(step, outcome):
    emit(step, error=outcome.is_error, text=outcome.content[0].text, fields=outcome.structured_content)


def script(text):
    return {"argv": ["sh", "-c", text], "reason": "a test", "privileged": False}


async def main(mode, outpost, socket):
    server = StdioServerParameters(command=outpost, args=["mcp", "--socket", socket])
    async with Client(server, mode=mode) as client:
        tools = (await client.list_tools()).tools
        emit("tools", names=sorted(tool.name for tool in tools), version=client.protocol_version)
        result("status", await client.call_tool("status"))

        progress = []

        async def on_progress(done, total, message):
            progress.append(message)
            if len(progress) == 1:
                emit("progress", message=message)

        result("approved", await client.call_tool("execute", script("echo out"), progress_callback=on_progress))
        result("denied", await client.call_tool("execute", script("echo out")))
        result("unknown", await client.call_tool("execute", {**script("true"), "shell": True}))
        try:
            await client.call_tool("execute", script("echo late"), read_timeout_seconds=2)
        except Exception as error:
            emit("abandoned", why=str(error))
        result("after", await client.call_tool("status"))


asyncio.run(main(*sys.argv[1:]))
