"""Play conversations through tarik on a real vLLM pair and check answers and transfers.

Standard library only. run.sh starts everything and calls this; it can also be called by hand, for a pair and a
router that run already (--help).

Checks, each of which makes the exit status 1:
  - every reply equals, token for token, what P answers to the same request with a salt of its own and no
    kv_transfer_params, up to the first near tie (two tokens whose log-probabilities differ by less than --tie);
    responses and messages report no token ids: there the texts are compared;
  - tokens went from D to P, by P's own counters, and the receipts, of turns and of returns, add up to what P counted;
  - no transfer failed, no block was read after it had expired;
  - once D's TTL is over, neither engine holds a block.
"""

import argparse
import json
import random
import re
import sys
import time
import urllib.error
import urllib.request
import uuid

WORDS = ("river stone lamp quiet orange market window seven paper cloud engine garden bridge copper winter letter "
         "harbour ladder silver field mirror salt thunder village").split()
TURNS = 5


def post(url, body, timeout=600):
    """The reply's bytes and headers. An HTTP error is an exception that says what the server said."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return reply.read(), reply.headers
    except urllib.error.HTTPError as e:
        raise RuntimeError(f"{url}: HTTP {e.code}: {e.read()[:500]!r}") from e


def get(url):
    with urllib.request.urlopen(url, timeout=30) as reply:
        return reply.read().decode()


def parts(raw, streamed):
    """The JSON documents of a reply: one, or one for each event up to [DONE]."""
    if not streamed:
        return [json.loads(raw)]
    events = [e[len("data: "):] for e in raw.decode().split("\n\n") if e.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise RuntimeError(f"the stream does not end with [DONE]: …{raw[-200:]!r}")
    return [json.loads(e) for e in events[:-1]]


def read(raw, streamed):
    """Prompt ids, reply ids, text and finish reason of a reply of chat or completions."""
    answer = {"prompt": [], "ids": [], "text": "", "finish": None}
    for part in parts(raw, streamed):
        if part.get("error"):
            raise RuntimeError(f"error in the reply: {part['error']}")
        answer["prompt"] += part.get("prompt_token_ids") or []
        for choice in part.get("choices", []):
            answer["prompt"] += choice.get("prompt_token_ids") or []
            answer["ids"] += choice.get("token_ids") or []
            said = choice.get("delta") or choice.get("message")
            answer["text"] += (choice.get("text") or "") if said is None else (said.get("content") or "")
            answer["finish"] = choice.get("finish_reason") or answer["finish"]
    if not answer["prompt"]:
        raise RuntimeError("no prompt_token_ids in the reply, though return_token_ids was asked for")
    return answer


def text_of(raw, streamed):
    """Text of a reply of responses or messages."""
    if not streamed:
        reply = json.loads(raw)
        blocks = reply.get("content") or [c for item in reply.get("output", []) for c in item.get("content") or []]
        return "".join(b.get("text") or "" for b in blocks)
    text, ended = "", False
    for line in raw.decode().splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[len("data: "):])
        if event["type"] in ("error", "response.failed"):
            raise RuntimeError(f"error in the reply: {event}")
        if event["type"] == "response.output_text.delta":
            text += event["delta"]
        elif event["type"] == "content_block_delta":
            text += event["delta"].get("text") or ""
        ended = ended or event["type"] in ("message_stop", "response.completed", "response.incomplete")
    if not ended:
        raise RuntimeError(f"the stream has no end: …{raw[-200:]!r}")
    return text


def alternatives(reply):
    """For each position of a reply with logprobs, token id -> log-probability of the likeliest tokens."""
    logprobs = reply["choices"][0]["logprobs"]
    if "content" in logprobs:  # chat
        return [{int(t["token"].removeprefix("token_id:")): t["logprob"] for t in position["top_logprobs"] + [position]}
                for position in logprobs["content"]]
    return [{int(t.removeprefix("token_id:")): p for t, p in position.items()} for position in logprobs["top_logprobs"]]


def difference(got, want, likely, tie):
    """What to say about two replies: None if equal, else (is it a near tie, text).

    likely are the alternatives of want. After a near tie the two continue differently by right, so what follows it
    is not compared.
    """
    for i, (g, w) in enumerate(zip(got, want)):
        if g == w:
            continue
        gap = likely[i][w] - likely[i][g] if g in likely[i] else None
        if gap is not None and gap < tie:
            return True, f"near tie at token {i}: {g} for {w}, {gap:.3f} nat apart; {len(want) - i} tokens not compared"
        return False, f"token {i} is {g}, want {w}" + (f", {gap:.3f} nat apart" if gap is not None else ", not among the likeliest")
    if len(got) != len(want):
        return False, f"{len(got)} tokens, want {len(want)}"
    return None


NAMES = {
    "prompt_tokens_by_source_total": "source",
    "nixl_bytes_transferred_sum": None,
    "nixl_bytes_transferred_count": None,
    "nixl_num_failed_transfers_total": None,
    "nixl_num_kv_expired_reqs_total": None,
    "nixl_num_notifications_after_expiry_total": None,
    "kv_cache_usage_perc": None,
}


def metrics(text):
    """The counters of NAMES in a /metrics document, summed over labels other than the one named there."""
    out = {}
    for line in text.splitlines():
        m = re.match(r"vllm:(\w+)(?:\{(.*)\})? (\S+)$", line)
        if not m or m[1] not in NAMES:
            continue
        label = NAMES[m[1]]
        key = m[1]
        if label:
            key += ":" + re.search(rf'{label}="([^"]*)"', m[2])[1]
        out[key] = out.get(key, 0.0) + float(m[3])
    return out


def conversation(model, route, streamed, seed, tokens):
    """The requests of a conversation, as a function from the replies so far to the next body."""
    r = random.Random(seed)
    pick = lambda n: " ".join(r.choice(WORDS) for _ in range(n))
    texts = ["Write a long story in which these words occur: " + pick(300)]
    texts += [f"Go on, and use these as well: {pick(60)}" for _ in range(TURNS - 1)]

    def body(replies):
        # min_tokens: replies long enough for P to find them worth a transfer.
        b = {"model": model, "temperature": 0}
        if streamed:
            b["stream"] = True
        if route in IDS:
            b |= {"max_tokens": tokens, "min_tokens": tokens, "return_token_ids": True}
            if streamed:
                b["stream_options"] = {"include_usage": True}
        if route == "/v1/completions":
            b["prompt"] = texts[0] + "".join(f"{reply}\n{text}" for reply, text in zip(replies, texts[1:]))
            return b
        said = [{"role": "user", "content": texts[0]}]
        for reply, text in zip(replies, texts[1:]):
            said += [{"role": "assistant", "content": reply}, {"role": "user", "content": text}]
        b["input" if route == "/v1/responses" else "messages"] = said
        b["max_output_tokens" if route == "/v1/responses" else "max_tokens"] = tokens
        return b
    return body


# The routes that report token ids.
IDS = ("/v1/chat/completions", "/v1/completions")


def without_reuse(body, route):
    """The same request for an engine alone: nothing of it can be in a cache, and the alternatives are reported."""
    b = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
    b |= {"cache_salt": uuid.uuid4().hex, "return_tokens_as_token_ids": True}
    return b | ({"logprobs": 5} if route == "/v1/completions" else {"logprobs": True, "top_logprobs": 5})


class Checks:
    def __init__(self):
        self.failed = []

    def check(self, holds, text):
        print(("ok      " if holds else "FAILED  ") + text, flush=True)
        if not holds:
            self.failed.append(text)


def receipt(admin, turn):
    """The receipt of a turn whose return has ended: an agent's tools take longer than that."""
    for _ in range(200):
        found = json.loads(get(f"{admin}/turns?turn={turn}"))
        if found and (found[0].get("return") or {}).get("state") != "pending":
            return found[0]
        time.sleep(0.1)
    raise RuntimeError(f"no receipt of turn {turn}")


def play(args, model, route, streamed, seed):
    """One conversation through the router. Returns its turns: request, answer, receipt."""
    print(f"\n{route}{', streamed' if streamed else ''}\n  turn  prompt  reply  P local  pulled  computed  D cached  TTFT ms  arm                     return: state  tokens  pulled  computed  ms")
    body, replies, turns = conversation(model, route, streamed, seed, args.tokens), [], []
    for i in range(TURNS):
        request = body(replies)
        raw, headers = post(args.router + route, request)
        answer = read(raw, streamed) if route in IDS else {"text": text_of(raw, streamed)}
        if b"kv_transfer_params" in raw:
            raise RuntimeError("the client got kv_transfer_params")
        r = receipt(args.admin, headers["X-Tarik-Turn"])
        number = lambda name, of=r: "-" if of.get(name) is None else round(of[name], 1)
        back = r.get("return") or {}
        print(f"  {i:4}  {r['prompt_tokens']:6}  {r['output_tokens']:5}  {number('p_local_tokens'):>7}  {number('p_pulled_tokens'):>6}  "
              f"{number('p_computed_tokens'):>8}  {number('d_cached_tokens'):>8}  {number('ttft_ms'):>7}  {r['arm'] + ', ' + r['why']:22}  "
              f"{back.get('state', '-'):>13}  {number('tokens', back):>6}  {number('pulled_tokens', back):>6}  {number('computed_tokens', back):>8}  {number('ms', back)} {back.get('why', '')}", flush=True)
        replies.append(answer["text"])
        turns.append({"name": f"{route}{' streamed' if streamed else ''}, turn {i}", "route": route, "request": request, "answer": answer, "receipt": r})
    return turns


def compare(args, turns, checks):
    """Every turn against P alone."""
    ties = 0
    texts = [t for t in turns if t["route"] not in IDS]
    turns = [t for t in turns if t["route"] in IDS]
    equal = 0
    for turn in texts:
        body = {k: v for k, v in turn["request"].items() if k != "stream"} | {"cache_salt": uuid.uuid4().hex}
        raw, _ = post(args.prefill + turn["route"], body)
        want, got = text_of(raw, False), turn["answer"]["text"]
        equal += want == got
        if want != got:
            same = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
            print(f"        {turn['name']}: text equal up to {same} of {len(want)} characters")
    if texts:
        checks.check(2 * equal >= len(texts), f"{equal} of {len(texts)} texts of responses and messages are equal, at least half must be")
    for turn in turns:
        raw, _ = post(args.prefill + turn["route"], without_reuse(turn["request"], turn["route"]))
        want = read(raw, False)
        if want["prompt"] != turn["answer"]["prompt"]:
            checks.check(False, f"{turn['name']}: the prompt's token ids differ from the engine's own rendering")
            continue
        found = difference(turn["answer"]["ids"], want["ids"], alternatives(json.loads(raw)), args.tie)
        if found and found[0]:
            ties += 1
            print(f"        {turn['name']}: {found[1]}")
        else:
            checks.check(found is None, f"{turn['name']}: " + (found[1] if found else f"{len(want['ids'])} tokens equal"))
    checks.check(ties <= len(turns) // 4, f"{ties} of {len(turns)} replies end in a near tie, at most a quarter may")


def report(before, after):
    """Print what the engines counted. Returns the differences."""
    delta = {e: {k: after[e].get(k, 0) - before[e].get(k, 0) for k in after[e] if k != "kv_cache_usage_perc"} for e in after}
    print(f"\n{'the engines count':48} {'P':>14} {'D':>14}")
    for key in sorted(set(delta["P"]) | set(delta["D"])):
        print(f"  {key:46} {delta['P'].get(key, 0):14.0f} {delta['D'].get(key, 0):14.0f}")
    return delta


def wait_until_proven(args):
    """The router tries its P once before it gives it a client's handle."""
    for _ in range(120):
        if re.search(r"^tarik_prefill_handles_proven\{.*\} 1$", get(args.admin + "/metrics"), re.M):
            return True
        time.sleep(0.5)
    return False


def main():
    parser = argparse.ArgumentParser(description="Check tarik on a running vLLM pair.")
    parser.add_argument("--router", default="http://127.0.0.1:8080")
    parser.add_argument("--admin", default="http://127.0.0.1:9091")
    parser.add_argument("--prefill", default="http://127.0.0.1:8100", help="P itself, for comparison and metrics")
    parser.add_argument("--decode", default="http://127.0.0.1:8200", help="D itself, for metrics")
    parser.add_argument("--tokens", type=int, default=80, help="reply length")
    parser.add_argument("--routes", default="/v1/chat/completions,/v1/completions,/v1/responses,/v1/messages", help="endpoints to play, each streamed and not")
    parser.add_argument("--tie", type=float, default=0.15, help="nat between two tokens that count as equally likely")
    parser.add_argument("--ttl", type=float, default=120, help="D's decoder_kv_blocks_ttl in seconds; 0: do not wait for its end")
    args = parser.parse_args()

    checks = Checks()
    checks.check(wait_until_proven(args), "the router has found that P reads handles")
    snapshot = lambda: {e: metrics(get(url + "/metrics")) for e, url in (("P", args.prefill), ("D", args.decode))}
    model = json.loads(get(args.router + "/v1/models"))["data"][0]["id"]
    before = snapshot()

    turns = []
    routes = [(route, streamed) for route in args.routes.split(",") for streamed in (False, True)]
    for seed, (route, streamed) in enumerate(routes):
        turns += play(args, model, route, streamed, f"{time.time_ns()} {seed}")
    ended = time.monotonic()
    delta = report(before, snapshot())

    print()
    by = lambda e, source: delta[e].get("prompt_tokens_by_source_total:" + source, 0)
    backs = [t["receipt"]["return"] for t in turns if (t["receipt"].get("return") or {}).get("state") == "done"]
    said = sum((t["receipt"]["p_local_tokens"] or 0) + (t["receipt"]["p_pulled_tokens"] or 0) for t in turns)
    said += sum(b["tokens"] - b["computed_tokens"] for b in backs)
    pulled = sum(t["receipt"]["p_pulled_tokens"] or 0 for t in turns) + sum(b["pulled_tokens"] for b in backs)
    counted = by("P", "local_cache_hit") + by("P", "external_kv_transfer")
    checks.check(by("P", "external_kv_transfer") > 0 and delta["P"].get("nixl_bytes_transferred_count", 0) > 0, "P pulled tokens from D")
    checks.check(pulled == by("P", "external_kv_transfer"), f"receipts say that P pulled {pulled} tokens, P counted {by('P', 'external_kv_transfer'):.0f}")
    checks.check(said == counted, f"receipts say that P reused {said} tokens, P counted {counted:.0f}")
    for e in ("P", "D"):
        for key, what in (("nixl_num_failed_transfers_total", "transfers failed"), ("nixl_num_notifications_after_expiry_total", "blocks read after they had expired")):
            checks.check(delta[e].get(key, 0) == 0, f"{e}: {delta[e].get(key, 0):.0f} {what}")
    compare(args, turns, checks)

    if args.ttl:
        usage = lambda: {e: m.get("kv_cache_usage_perc", 0) for e, m in snapshot().items()}
        held = usage()
        print(f"        blocks in use now: P {held['P']:.4f}, D {held['D']:.4f}; waiting for D's TTL to end")
        while any(held.values()) and time.monotonic() < ended + args.ttl + 30:
            time.sleep(2)
            held = usage()
        checks.check(not any(held.values()), f"blocks in use after D's TTL: P {held['P']:.4f}, D {held['D']:.4f}")

    print(f"\n{'FAILED: %d checks' % len(checks.failed) if checks.failed else 'all checks hold'}")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError) as e:
        print(f"play: {e}", file=sys.stderr)
        sys.exit(1)
