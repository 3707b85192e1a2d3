"""The parts of play.py that judge: python3 -m unittest discover -s scripts/interop -p '*_test.py'"""

import json
import unittest

import play


class Read(unittest.TestCase):
    def test_chat_stream(self):
        raw = (b'data: {"prompt_token_ids":[1,2],"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
               b": keep-alive\n\n"
               b'data: {"choices":[{"delta":{"content":"a"},"token_ids":[7],"finish_reason":null}]}\n\n'
               b'data: {"choices":[{"delta":{"content":"b"},"token_ids":[8],"finish_reason":"stop"}]}\n\n'
               b'data: {"choices":[],"usage":{"prompt_tokens":2}}\n\n'
               b"data: [DONE]\n\n")
        self.assertEqual(play.read(raw, True), {"prompt": [1, 2], "ids": [7, 8], "text": "ab", "finish": "stop"})

    def test_completions(self):
        raw = b'{"choices":[{"text":"ab","prompt_token_ids":[1],"token_ids":[7,8],"finish_reason":"length"}]}'
        self.assertEqual(play.read(raw, False), {"prompt": [1], "ids": [7, 8], "text": "ab", "finish": "length"})

    def test_broken_stream(self):
        with self.assertRaisesRegex(RuntimeError, "does not end"):
            play.read(b'data: {"prompt_token_ids":[1],"choices":[]}\n\n', True)

    def test_error_in_stream(self):
        with self.assertRaisesRegex(RuntimeError, "error in the reply"):
            play.read(b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n', True)


class Difference(unittest.TestCase):
    likely = [{1: -0.1, 2: -2.0}, {3: -0.70, 4: -0.75, 5: -3.0}, {6: -0.1}]

    def test_equal(self):
        self.assertIsNone(play.difference([1, 3, 6], [1, 3, 6], self.likely, 0.15))

    def test_near_tie(self):
        self.assertEqual(play.difference([1, 4, 9], [1, 3, 6], self.likely, 0.15),
                         (True, "near tie at token 1: 4 for 3, 0.050 nat apart; 2 tokens not compared"))

    def test_wrong(self):
        self.assertEqual(play.difference([2, 3, 6], [1, 3, 6], self.likely, 0.15), (False, "token 0 is 2, want 1, 1.900 nat apart"))
        self.assertEqual(play.difference([1, 9, 6], [1, 3, 6], self.likely, 0.15), (False, "token 1 is 9, want 3, not among the likeliest"))
        self.assertEqual(play.difference([1, 3], [1, 3, 6], self.likely, 0.15), (False, "2 tokens, want 3"))


class Alternatives(unittest.TestCase):
    def test_both_routes(self):
        chat = {"choices": [{"logprobs": {"content": [
            {"token": "token_id:5", "logprob": -0.5, "top_logprobs": [{"token": "token_id:6", "logprob": -0.4}]}]}}]}
        completion = {"choices": [{"logprobs": {"tokens": ["token_id:5"], "top_logprobs": [{"token_id:6": -0.4, "token_id:5": -0.5}]}}]}
        self.assertEqual(play.alternatives(chat), [{5: -0.5, 6: -0.4}])
        self.assertEqual(play.alternatives(completion), [{5: -0.5, 6: -0.4}])


class Metrics(unittest.TestCase):
    def test_sums(self):
        text = """# HELP vllm:kv_cache_usage_perc used
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 10.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_cache_hit"} 5.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 1.5e+03
vllm:nixl_bytes_transferred_bucket{engine="0",le="2048.0",model_name="m"} 3.0
"""
        self.assertEqual(play.metrics(text), {"kv_cache_usage_perc": 0.25, "prompt_tokens_by_source_total:local_cache_hit": 15.0,
                                              "prompt_tokens_by_source_total:external_kv_transfer": 1500.0})


class Conversation(unittest.TestCase):
    def test_grows(self):
        for route in ("/v1/chat/completions", "/v1/completions"):
            body = play.conversation("m", route, False, 1, 9)
            one, two = body([]), body(["reply"])
            if route == "/v1/completions":
                self.assertTrue(two["prompt"].startswith(one["prompt"] + "reply\n"))
            else:
                self.assertEqual(two["messages"][:2], one["messages"] + [{"role": "assistant", "content": "reply"}])
            alone = play.without_reuse(body([]) | {"stream": True, "stream_options": {}}, route)
            self.assertNotIn("stream", json.dumps(alone))
            self.assertNotEqual(alone["cache_salt"], play.without_reuse(one, route)["cache_salt"])


if __name__ == "__main__":
    unittest.main()
