"""What an application does with openai-python; prints what it got as one line of canonical JSON.

usage: openai_calls.py BASE_URL API_KEY CHAT_MODEL EMBEDDING_MODEL [PROJECT]
"""

import json
import sys

import openai

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Today's weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
MESSAGES = [{"role": "user", "content": "Grüße aus Köln \N{WAVING HAND SIGN}"}]


def plain(result):
    return result.model_dump(mode="json")


def stream(client, **arguments):
    """Each chunk, and what an application's `choices[0]` loop makes of them."""
    chunks, text = [], ""
    for chunk in client.chat.completions.create(stream=True, **arguments):
        chunks.append(plain(chunk))
        if "stream_options" not in arguments or chunk.choices:
            text += chunk.choices[0].delta.content or ""
    return {"chunks": chunks, "text": text}


def error(call):
    try:
        return plain(call())
    except openai.APIStatusError as e:
        return {"class": type(e).__name__, "status": e.status_code, "code": e.code, "type": e.type, "param": e.param}


def main(base_url, key, model, embedding_model, project=None):
    client = openai.OpenAI(base_url=base_url, api_key=key, project=project, max_retries=0, timeout=30)
    chat = client.chat.completions.create
    results = {
        "chat": plain(chat(model=model, messages=MESSAGES)),
        "chat_with_options": plain(
            chat(model=model, messages=MESSAGES, max_tokens=50, temperature=0.2, seed=7, user="u-1", stop=["\n"])
        ),
        "stream": stream(client, model=model, messages=MESSAGES),
        "stream_with_usage": stream(client, model=model, messages=MESSAGES, stream_options={"include_usage": True}),
        "tools": plain(chat(model=model, messages=MESSAGES, tools=[WEATHER], parallel_tool_calls=True)),
        "tools_stream": stream(client, model=model, messages=MESSAGES, tools=[WEATHER]),
        "embeddings": plain(client.embeddings.create(model=embedding_model, input=["a", "b"])),
        "embeddings_as_floats": plain(
            client.embeddings.create(model=embedding_model, input="a", dimensions=4, encoding_format="float")
        ),
        "models": sorted(m.id for m in client.models.list()),
        "unknown_model": error(lambda: chat(model="no-such-model", messages=MESSAGES)),
    }
    print(json.dumps(results, sort_keys=True, ensure_ascii=True, separators=(",", ":")))


if __name__ == "__main__":
    main(*sys.argv[1:])
