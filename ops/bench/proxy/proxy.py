"""The baseline of `nextstate bench gateway`: a recording proxy as one writes it in Python.

FastAPI, one shared httpx.AsyncClient. It forwards POST /v1/chat/completions to the upstream, streams the answer back as it comes, and then
writes the messages and the response as one line of JSON. Arguments: the upstream's URL and the file.
"""

import json
import sys
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

upstream, path = sys.argv[1], sys.argv[2]


@asynccontextmanager
async def lifespan(app):
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(base_url=upstream, timeout=None, limits=limits) as client:
        with open(path, "a", encoding="utf-8") as out:
            app.state.client, app.state.out = client, out
            yield


app = FastAPI(lifespan=lifespan)


def record(asked, text, calls, reason):
    response = {"role": "assistant", "content": text, "tool_calls": calls}
    line = {"model": asked.get("model"), "messages": asked["messages"], "response": response, "finish_reason": reason}
    app.state.out.write(json.dumps(line) + "\n")
    app.state.out.flush()


@app.post("/v1/chat/completions")
async def completions(request: Request):
    body = await request.body()
    asked = json.loads(body)
    headers = {"content-type": "application/json"}
    if "authorization" in request.headers:
        headers["authorization"] = request.headers["authorization"]
    if not asked.get("stream"):
        answer = await app.state.client.post("/chat/completions", content=body, headers=headers)
        if answer.status_code == 200:
            choice = answer.json()["choices"][0]
            record(asked, choice["message"].get("content"), choice["message"].get("tool_calls"), choice.get("finish_reason"))
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    sent = app.state.client.build_request("POST", "/chat/completions", content=body, headers=headers)
    answer = await app.state.client.send(sent, stream=True)
    if answer.status_code != 200:
        content = await answer.aread()
        return JSONResponse(json.loads(content), answer.status_code)

    async def relay():
        text, calls, reason = [], [], None
        try:
            async for line in answer.aiter_lines():
                yield line + "\n"
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                for choice in json.loads(line[6:]).get("choices", []):
                    text.append(choice["delta"].get("content") or "")
                    calls.extend(choice["delta"].get("tool_calls") or [])
                    reason = choice.get("finish_reason") or reason
        finally:
            await answer.aclose()
        record(asked, "".join(text), calls, reason)

    return StreamingResponse(relay(), media_type="text/event-stream")


if __name__ == "__main__":
    # Port 0 is one that is free; uvicorn logs which.
    uvicorn.run(app, host="127.0.0.1", port=0, access_log=False, log_level="info")
