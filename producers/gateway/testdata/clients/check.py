"""Drives a gateway with the official Python client: check.py BASE_URL API_KEY [scripted]

With "scripted" the policy is the test's own, which says what it is told; without, any policy will do, and only what every policy owes is checked.
"""

import asyncio
import sys
import uuid

import openai
from openai import AsyncOpenAI, OpenAI

base_url, key = sys.argv[1], sys.argv[2]
scripted = sys.argv[3:] == ["scripted"]
client = OpenAI(base_url=base_url, api_key=key, max_retries=3, timeout=120)
bounds = {"max_tokens": 24, "temperature": 0.7, "seed": 11}
hello = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Say hello to Ann"}]
tools = [{"type": "function", "function": {"name": "weather", "description": "The weather in a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def fails(kind, do, **want):
    try:
        do()
    except kind as e:
        for name, value in want.items():
            assert getattr(e, name) == value, (name, getattr(e, name), value)
        assert e.message, e
        return
    raise AssertionError(f"no {kind.__name__}")


def models():
    ids = [m.id for m in client.models.list()]
    assert ids[0] == "policy" and len(ids) > 1, ids
    assert client.models.retrieve("policy").object == "model"
    assert client.models.retrieve(ids[1]).id == ids[1]
    fails(openai.NotFoundError, lambda: client.models.retrieve("gpt-0"), code="model_not_found")
    answer = client.chat.completions.create(model=ids[-1], messages=hello, **bounds)
    assert answer.model == ids[-1] and answer.system_fingerprint == ids[-1], answer


def whole():
    # Words that no other conversation has: one that begins and goes on in the same way cannot be told apart.
    name = uuid.uuid4().hex[:8]
    mine = [hello[0], {"role": "user", "content": f"Say hello to {name}"}]
    raw = client.chat.completions.with_raw_response.create(model="policy", messages=mine, **bounds)
    answer = raw.parse()
    choice = answer.choices[0]
    assert answer.id == "chatcmpl-" + raw.headers["x-nextstate-turn"], answer.id
    assert choice.message.role == "assistant" and isinstance(choice.message.content, str), choice
    assert choice.finish_reason in ("stop", "length"), choice
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0, answer.usage
    if scripted:
        assert choice.message.content == f"You said: Say hello to {name}", choice
    # The next request goes on with the session, and the judgement finds the turn.
    follow = mine + [{"role": "assistant", "content": choice.message.content}, {"role": "user", "content": "Again"}]
    again = client.chat.completions.with_raw_response.create(model="policy", messages=follow, **bounds)
    assert again.headers["x-nextstate-session"] == raw.headers["x-nextstate-session"]
    judged = client.post("/feedback", body={"response_id": answer.id, "score": 1, "text": "good"}, cast_to=object)
    assert judged["recorded"] is True, judged
    ended = client.post(f"/sessions/{raw.headers['x-nextstate-session']}/end", body={"reason": "done"}, cast_to=object)
    assert ended["ended"] is True, ended
    fails(openai.NotFoundError, lambda: client.post("/feedback", body={"response_id": "chatcmpl-0", "score": 1}, cast_to=object))


def stream():
    chunks = list(client.chat.completions.create(model="policy", messages=hello, stream=True, stream_options={"include_usage": True}, **bounds))
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0, chunks[-1]
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] in (["stop"], ["length"])
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    if scripted:
        assert text == "You said: Say hello to Ann", text
        assert len(chunks) > 6, "the stream came in one piece"
    with client.chat.completions.stream(model="policy", messages=hello, **bounds) as events:
        kinds = {e.type for e in events}
        assert events.current_completion_snapshot.choices[0].message.content is not None
    assert "content.delta" in kinds and "content.done" in kinds, kinds


def logprobs():
    answer = client.chat.completions.create(model="policy", messages=hello, logprobs=True, top_logprobs=3, **bounds)
    tokens = answer.choices[0].logprobs.content
    assert 0 < len(tokens) <= answer.usage.completion_tokens, (len(tokens), answer.usage)
    assert all(t.logprob <= 0 and isinstance(t.token, str) and len(t.top_logprobs) == 3 for t in tokens), tokens
    text = b"".join(bytes(t.bytes) for t in tokens).decode(errors="replace")
    assert answer.choices[0].message.content.strip() in text, (text, answer)
    count = sum(len(c.choices[0].logprobs.content) for c in client.chat.completions.create(
        model="policy", messages=hello, logprobs=True, stream=True, **bounds) if c.choices and c.choices[0].logprobs)
    assert count > 0


def choices():
    answer = client.chat.completions.create(model="policy", messages=hello, n=3, max_tokens=8)
    assert [c.index for c in answer.choices] == [0, 1, 2], answer
    seen = set()
    for c in client.chat.completions.create(model="policy", messages=hello, n=2, max_tokens=8, stream=True):
        seen.add(c.choices[0].index)
    assert seen == {0, 1}, seen
    assert client.chat.completions.create(model="policy", messages=hello, max_completion_tokens=1).choices[0].finish_reason == "length"


def tool_calls():
    messages = [{"role": "user", "content": "call weather"}]
    answer = client.chat.completions.create(model="policy", messages=messages, tools=tools, **bounds)
    message = answer.choices[0].message
    assert not scripted or (answer.choices[0].finish_reason == "tool_calls" and message.tool_calls[0].function.name == "weather"), answer
    if message.tool_calls:
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in message.tool_calls]
        after = client.chat.completions.create(model="policy", messages=messages, tools=tools, **bounds)
        assert not scripted or after.choices[0].message.content == "You said: sunny", after
    with client.chat.completions.stream(model="policy", messages=messages[:1], tools=tools, **bounds) as events:
        for _ in events:
            pass
        final = events.current_completion_snapshot.choices[0].message
    assert not scripted or final.tool_calls[0].function.arguments == '{"city":"Ulm"}', final
    legacy = client.chat.completions.create(model="policy", messages=messages[:1], functions=[tools[0]["function"]], **bounds)
    assert not scripted or legacy.choices[0].message.function_call.name == "weather", legacy


def errors():
    def create(**change):
        return client.chat.completions.create(**({"model": "policy", "messages": hello} | bounds | change))
    fails(openai.BadRequestError, lambda: create(temperature=9), param="temperature", type="invalid_request_error")
    fails(openai.BadRequestError, lambda: create(messages=[{"role": "user", "content": 7}]), param="messages[0].content")
    fails(openai.BadRequestError, lambda: create(messages=[]), param="messages")
    fails(openai.BadRequestError, lambda: create(messages=[{"role": "tool", "tool_call_id": "x", "content": "y"}]), param="messages[0].tool_call_id")
    fails(openai.BadRequestError, lambda: create(presence_penalty=1), param="presence_penalty")
    fails(openai.NotFoundError, lambda: create(model="gpt-0"), code="model_not_found")
    wrong = OpenAI(base_url=base_url, api_key="nsk_wrong", max_retries=0)
    fails(openai.AuthenticationError, lambda: wrong.models.list(), code="invalid_api_key")
    # A body that is refused before it is read: the answer arrives all the same.
    fails(openai.APIStatusError, lambda: create(messages=[{"role": "user", "content": "x" * (40 << 20)}]), status_code=413)


def scripted_faults():
    # Twice the policy is busy: the client waits and asks again, marking it, and has one turn.
    raw = client.chat.completions.with_raw_response.create(model="policy", messages=[{"role": "user", "content": "busy twice"}])
    assert raw.retries_taken == 2 and raw.parse().choices[0].message.content == "You said: busy twice"
    once = OpenAI(base_url=base_url, api_key=key, max_retries=0)
    ask = lambda text, **more: once.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}], **more)
    fails(openai.RateLimitError, lambda: ask("always busy"), code="rate_limit_exceeded")
    fails(openai.BadRequestError, lambda: ask("too long"), code="context_length_exceeded")
    fails(openai.InternalServerError, lambda: ask("crash"), status_code=503)
    try:
        for _ in ask("crash later", stream=True):
            pass
        raise AssertionError("the stream ended as if it were whole")
    except openai.APIError as e:
        assert e.message and e.type == "server_error", e
    try:
        client.with_options(timeout=0.2, max_retries=0).chat.completions.create(model="policy", messages=[{"role": "user", "content": "hang"}])
        raise AssertionError("no timeout")
    except openai.APITimeoutError:
        pass


async def concurrently():
    async with AsyncOpenAI(base_url=base_url, api_key=key, timeout=120) as c:
        async def one(i):
            text = ""
            async for chunk in await c.chat.completions.create(model="policy", messages=[{"role": "user", "content": f"agent {i}"}], stream=True, max_tokens=6):
                text += chunk.choices[0].delta.content or ""
            return text
        texts = await asyncio.gather(*(one(i) for i in range(20)))
        assert not scripted or texts == [f"You said: agent {i}" for i in range(20)], texts


for check in [models, whole, stream, logprobs, choices, tool_calls, errors] + ([scripted_faults] if scripted else []):
    check()
    print("ok", check.__name__, flush=True)
asyncio.run(concurrently())
print("ok concurrently")
