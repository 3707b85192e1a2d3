"""The unmodified Python SDKs, and an agent framework, against a running router.

Usage: sdk.py BASE_URL ADMIN_URL MODEL. Every check is a function; all of them run, and the exit status is the number
that failed. The model behind the router may be one that writes nonsense: what is checked is the wire.
"""
import asyncio
import json
import sys
import time
import traceback
import urllib.request

import anthropic
import openai

BASE, ADMIN, MODEL = sys.argv[1:4]
client = openai.OpenAI(base_url=BASE + "/v1", api_key="sk-test", max_retries=0, timeout=60)
claude = anthropic.Anthropic(base_url=BASE, api_key="sk-test", max_retries=0, timeout=60)
STORY = "Tell me about the river and the stone. " * 20
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks at a file.",
        "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}, "required": ["z"]}}}


def receipts(turn=None):
    """The receipt of one turn, or all, the newest first. A receipt follows the end of its reply at once."""
    for _ in range(50):
        with urllib.request.urlopen(ADMIN + "/turns?n=1000" + (f"&turn={turn}" if turn else ""), timeout=10) as r:
            got = json.load(r)
        if got or not turn:
            return got[0] if turn else got
        time.sleep(0.05)
    raise AssertionError(f"no receipt for turn {turn}")


def models():
    assert MODEL in [m.id for m in client.models.list()]


def chat():
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": STORY}], max_tokens=30, temperature=0)
    got = raw.parse()
    assert got.choices[0].message.content, got
    assert got.usage.completion_tokens <= 30 and got.usage.prompt_tokens > 50, got.usage
    assert "kv_transfer_params" not in got.model_dump_json(), "the reply shows a handle"
    assert receipts(raw.headers["x-tarik-turn"])["output_tokens"] == got.usage.completion_tokens


def chat_stream_equals_whole():
    ask = dict(model=MODEL, messages=[{"role": "user", "content": STORY + "Again."}], max_tokens=40, temperature=0)
    whole = client.chat.completions.create(**ask)
    text, usage = "", None
    for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        assert "kv_transfer_params" not in chunk.model_dump_json()
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content, (text, whole)
    assert usage.completion_tokens == whole.usage.completion_tokens


def chat_turns_are_reused():
    messages = [{"role": "system", "content": STORY}, {"role": "user", "content": "Begin."}]
    for n in range(4):
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=60, temperature=0, extra_body={"min_tokens": 60})
        reply = raw.parse().choices[0].message.content
        rc = receipts(raw.headers["x-tarik-turn"])
        assert rc["turn_number"] == n + 1, rc
        if n:
            assert rc["p_pulled_tokens"] + rc["p_local_tokens"] > rc["prompt_tokens"] / 2, rc
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"Go on with part {n}."}]


def chat_tools():
    got = client.chat.completions.create(
        model=MODEL, max_tokens=20, temperature=0, tools=[TOOL], tool_choice="auto",
        messages=[{"role": "user", "content": "Look at it."},
                  {"role": "assistant", "content": None, "tool_calls": [
                      {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"z": "a.txt", "a": 1}'}}]},
                  {"role": "tool", "tool_call_id": "c1", "content": "It says: the river is wide."}])
    assert got.choices[0].finish_reason in ("stop", "length", "tool_calls"), got


def chat_structured_output_is_accepted():
    got = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "A number."}], max_tokens=10,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}})
    assert got.choices[0].message.content is not None


def chat_cancel():
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": STORY}], max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    for n, _ in enumerate(stream):
        if n == 5:
            break
    stream.close()
    end = time.time() + 20
    while not any(r["status"] == 499 for r in receipts()):
        assert time.time() < end, "the router did not notice that the client left"
        time.sleep(0.1)


def chat_several_replies():
    got = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Say."}], max_tokens=5, n=3, temperature=1)
    assert [c.index for c in got.choices] == [0, 1, 2], got


def completions():
    text = "".join(c.choices[0].text for c in client.completions.create(
        model=MODEL, prompt=STORY, max_tokens=20, temperature=0, stream=True) if c.choices)
    assert text == client.completions.create(model=MODEL, prompt=STORY, max_tokens=20, temperature=0).choices[0].text


def errors_are_typed():
    for kind, ask in [(openai.NotFoundError, dict(model="no-such", messages=[{"role": "user", "content": "x"}])),
                      (openai.BadRequestError, dict(model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=10**9)),
                      (openai.BadRequestError, dict(model=MODEL, messages="x"))]:
        try:
            client.chat.completions.create(**ask)
        except kind as e:
            assert e.body and e.body.get("message"), e.body
        else:
            raise AssertionError(f"no {kind.__name__} for {ask}")


def responses():
    first = client.responses.create(model=MODEL, input=STORY, max_output_tokens=40, temperature=0)
    assert first.output_text, first
    then = client.responses.with_raw_response.create(
        model=MODEL, input="And then?", previous_response_id=first.id, max_output_tokens=20, temperature=0)
    rc = receipts(then.headers["x-tarik-turn"])
    assert rc["turn_number"] == 2, rc
    assert then.parse().usage.input_tokens > first.usage.input_tokens


def responses_stream():
    kinds, text, final = [], "", None
    with client.responses.stream(model=MODEL, input=STORY, max_output_tokens=20, temperature=0) as s:
        for ev in s:
            kinds.append(ev.type)
            assert "kv_transfer_params" not in ev.model_dump_json(exclude_none=True)
            if ev.type == "response.output_text.delta":
                text += ev.delta
            if ev.type in ("response.completed", "response.incomplete"):
                final = ev.response
    assert kinds[0] == "response.created" and final is not None, kinds
    assert final.output_text == text


def messages():
    got = claude.messages.create(model=MODEL, max_tokens=30, extra_body={"temperature": 0}, system="Be brief. " * 20,
                                 messages=[{"role": "user", "content": STORY}])
    assert got.content[0].text and got.stop_reason in ("end_turn", "max_tokens"), got
    assert got.usage.output_tokens <= 30


def messages_stream_and_turns():
    history = [{"role": "user", "content": STORY}]
    for n in range(3):
        with claude.messages.stream(model=MODEL, max_tokens=40, extra_body={"temperature": 0}, messages=history) as s:
            text = "".join(s.text_stream)
            final = s.get_final_message()
        assert final.content[0].text == text
        history += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Part {n}."}]
    assert receipts()[0]["turn_number"] == 3, receipts()[0]


def messages_tools_and_count():
    tools = [{"name": "look", "description": "Looks.", "input_schema": TOOL["function"]["parameters"]}]
    history = [{"role": "user", "content": "Look."},
               {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {"z": "a.txt"}}]},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "the river"}]}]
    got = claude.messages.create(model=MODEL, max_tokens=10, tools=tools, messages=history)
    assert got.role == "assistant"
    assert claude.messages.count_tokens(model=MODEL, tools=tools, messages=history).input_tokens > 20


def messages_errors():
    try:
        claude.messages.create(model="no-such", max_tokens=5, messages=[{"role": "user", "content": "x"}])
    except anthropic.NotFoundError as e:
        assert e.message
    else:
        raise AssertionError("no error for an unknown model")


def agent_framework():
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    set_tracing_disabled(True)

    @function_tool
    def look(path: str) -> str:
        """Looks at a file."""
        return "the river"

    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=openai.AsyncOpenAI(base_url=BASE + "/v1", api_key="sk-test"))
    agent = Agent(name="a", instructions=STORY, model=model, tools=[look], model_settings=ModelSettings(max_tokens=40, temperature=0))

    async def play():
        history = "Begin."
        for _ in range(3):
            result = await Runner.run(agent, history)
            assert result.final_output
            history = result.to_input_list() + [{"role": "user", "content": "Go on."}]
        streamed = Runner.run_streamed(agent, history)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output

    asyncio.run(play())
    last = receipts()[0]
    assert last["turn_number"] == 4, last


def main():
    checks = [v for k, v in list(globals().items()) if callable(v) and getattr(v, "__module__", "") == "__main__" and k not in ("receipts", "main")]
    failed = 0
    for check in checks:
        try:
            check()
            print(f"ok      python {check.__name__}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  python {check.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(min(failed, 100))


main()
