"""Writes the tokenizers and expected encodings of this directory with the reference library.

    pip install tokenizers==0.23.3
    python make_encodings.py                  # small tokenizers, trained on the text below
    python make_encodings.py path/to/smollm2  # smollm2-encode.json, from the model's own tokenizer.json

Everything is deterministic except that another version of the library may train other merges.
"""

import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

TRAINING = """
The river is wide and the road is long. We walk along the water until the morning light comes over the hills.
Each turn of a conversation repeats what was said before, and each answer adds a little to it.
He said: "I'll go, you've seen it, they're here, it's late, we'd wait, I'm done, don't." She didn't answer.
Prices rose from 12 to 345 in 2024; version 1.26.8 has 1234567 lines, 0x1f600 and 3.14159e-10.

func main() {
	for i := 0; i < 10; i++ {
		fmt.Println("hello, world", i, x[i]*2)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
}

def read(path: str, *, limit: int = 100) -> list[str]:
    with open(path) as f:
        return [line.rstrip("\\n") for line in f][:limit]

{"name": "read_file", "arguments": {"path": "/tmp/a.txt", "limit": 10}}
Der Fluß ist größer als wir dachten, und die Brücke führt über ihn. Où est la bibliothèque? ¿Dónde está?
Река широка, дорога длинна. 河很宽，路很长。川は広く、道は長い。강은 넓고 길은 길다. नदी चौड़ी है। الطريق طويل
""" * 4

WORDS = "the river IS wide HelloWorld camelCase HTTPServer it's IT'S we'Ll x1 10 2024 ... !? -- == != ::".split()


def texts():
    out = [
        "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t\tx", " \n", "\n ", " \n \n x", "a\n\n\nb",
        "hello", " hello", "  hello", "hello ", "hello  ", "hello\n", "hello\nworld", "hello \n world",
        "The river is wide.", "it's, we'll, they're, I'm, you've, she'd, don't, 'tis, ''s, 'S, 'Re, 'LL, 'x",
        "IT'S WE'LL THEY'RE", "'\u017f and '\u212a", "1", "12", "123", "1234", "12345678901234567890", "a1b22c333d4444", " 1", "  1", "   12",
        "3.14159e-10 0x1f600 1,234,567", "\u0661\u0662\u0663 \u2167 \u00bd \u2460 x\u00b2",
        "func main() {\n\tfor i := 0; i < 10; i++ {\n\t\tfmt.Println(i)\n\t}\n}\n",
        "def f(x):\n    if x:\n        return  [y  for y in x]\n\n\n    return None\n",
        "if (a&&b||!c){x+=1;}//done\r\n/* block */\r\n",
        "{\"z\": 1, \"a\": [null, true, 1e400], \"m\": {}}", "<html><body class=\"x\">&amp;</body></html>",
        "https://example.org/a/b?c=d&e=%20#f", "user@example.org", "C:\\Users\\x\\file.txt", "/usr/local/bin/x",
        "...", "....", "!!!", "?!?!", "--", "----------------", "================", " ...", " !!! \n", "a...b", "$100 50% #tag @x ^y ~z `q`",
        "camelCase HTTPServer XMLHttpRequest iPhone eBay McDonald ABC123def snake_case_name kebab-case-name",
        "\u0130stanbul \u01c5 \u1e9e \u00df \ufb01 \u2126 \u212b",
        "Der Flu\u00df ist gr\u00f6\u00dfer. O\u00f9 est? \u00bfD\u00f3nde est\u00e1? \u0420\u0435\u043a\u0430 \u0448\u0438\u0440\u043e\u043a\u0430",
        "\u6cb3\u5f88\u5bbd\uff0c\u8def\u5f88\u957f\u3002", "\u5ddd\u306f\u5e83\u304f\u3001\u9053\u306f\u9577\u3044\u3002\u30ab\u30bf\u30ab\u30ca\uff76\uff80\uff76\uff85", "\uac15\uc740 \ub113\uace0 \u1100\u1161\u11a8",
        "\u0928\u0926\u0940 \u091a\u094c\u0921\u093c\u0940 \u0939\u0948\u0964", "\u0627\u0644\u0637\u0631\u064a\u0642 \u0637\u064e\u0648\u0650\u064a\u0644", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
        "e\u0301 \u00e9 a\u0308\u0323 \u1ea5 o\u0302\u0301 \u0301x  \u0301", "\u0301", " \u0301", "x\u0301\u0301\u0301y", "A\u0300b B\u0300 \u01f0\u0323",
        "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1ee\U0001f1e9\U0001f1ef\U0001f1f5", "\U0001f44d\U0001f3fd ok \u2764\ufe0f", "a\U0001f600b \U0001f600 c",
        "\u00a0x \u00a0 y\u2003z\u3000w\u2028v\u2029u\u0085t\u200bs\ufeffr", " \u00a0", "\u00a0\u00a0x", "x\u3000\u3000\n y",
        "a" * 70, "ab" * 60, "abcdefghij" * 15, " " * 17, " " * 40 + "x", "\n" * 9, "\t" * 6 + "y", "- " * 20, "0" * 33, "the" * 30,
        "\x00\x01\x02 \x7f \x1b[31m", "\ufffd\ufffd", "\ue000 \U000f0000 \U0010ffff",
        "<|im_start|>user\nhi<|im_end|>\n", "a<|im_end|>b", "<|im_end|><|im_end|>", "<|im_", "<|im_end|", " <|im_start|> ", "<<|im_end|>>",
        "<think>\nhm\n</think>\n\nok", "x <mask> y", "x  <mask>  y", "<mask>", " <mask><mask> ", "wholeword", "a wholeword b", "awholeword wholewordb whole wholeword.", "_wholeword \u00e9wholeword",
        "\u2581x \u2581\u2581 y", "<0x41> <0xE4>", "<s> x </s><unk>", "\u0661<|im_end|>\u0662",
        "caf\u00e9 caf\u0065\u0301 special\u00e9 special\u0065\u0301 x",
    ]
    rng = random.Random(7)
    pools = [
        [chr(c) for c in range(32, 127)],
        [" ", " ", "\n", "\r", "\t", "a", "B", "1", ".", "'", "s", "\u00e9", "\u4e2d"],
        [chr(c) for c in range(0xa0, 0x250)],
        [chr(c) for c in list(range(0x300, 0x340)) + list(range(0x61, 0x70)) + list(range(0xac00, 0xac20)) + list(range(0x1100, 0x1110))],
        [chr(c) for c in list(range(0x2000, 0x2070)) + list(range(0x1f300, 0x1f340)) + list(range(0x4e00, 0x4e40)) + [0x200d, 0xfe0f, 0x20]],
        ["<|im_end|>", "<|im_start|>", "<think>", "<mask>", "wholeword", " ", "x", "\n", "7", "\u00e9"],
        WORDS + [" ", " ", " ", "\n"],
    ]
    for i in range(84):
        pool = pools[i % len(pools)]
        out.append("".join(rng.choice(pool) for _ in range(rng.randrange(1, 24))))
    return out


def long_texts():
    rng = random.Random(11)
    planes = [(0x20, 0x7f), (0xa0, 0x52f), (0x900, 0xdff), (0x1e00, 0x2bff), (0x3040, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0x1f300, 0x1faff), (0x20000, 0x20fff)]
    out = []
    for _ in range(120):
        chars = []
        for _ in range(rng.randrange(1, 60)):
            low, high = rng.choice(planes)
            chars.append(chr(rng.randrange(low, high)))
        out.append("".join(chars))
    out.append(TRAINING)
    out.append("x" * 5000)
    out.append("".join(rng.choice("acgt") for _ in range(3000)))
    return out


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PLAIN = [AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<|im_end|>", special=True, normalized=False)]


def byte_level(pre, normalizer=None, added=PLAIN, size=620, **model):
    tok = Tokenizer(models.BPE(**model))
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([t for t in added if t.special])
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=[t for t in added if t.special])
    tok.train_from_iterator([TRAINING], trainer)
    tok.add_tokens([t for t in added if not t.special])
    return tok


def split(pattern, **kw):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), kw.get("behavior", "isolated"), kw.get("invert", False)),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def smollm():
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def digit_runs():
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)]), size=400)


def llama3():
    begin = AddedToken("<|begin_of_text|>", special=True, normalized=False)
    tok = byte_level(split(LLAMA3), added=PLAIN + [begin], ignore_merges=True)
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", tok.token_to_id("<|begin_of_text|>"))]),
    ])
    # A whole word that no chain of merges reaches: only ignore_merges finds it.
    data = json.loads(tok.to_str())
    merges = data["model"]["merges"]
    for i in range(len(merges) - 1, -1, -1):
        if "".join(merges[i]) in ("Ġriver", "Ġroad", "hello"):
            del merges[i]
    return Tokenizer.from_str(json.dumps(data))


def qwen2():
    return byte_level(split(QWEN2), normalizer=normalizers.NFC(),
                      added=PLAIN + [AddedToken("<think>", special=False, normalized=False), AddedToken("</think>", special=False, normalized=False)])


def qwen35():
    return byte_level(split(QWEN35), normalizer=normalizers.NFC(), size=500)


def o200k():
    return byte_level(split(O200K, behavior="removed", invert=True), size=500)


def gpt2_odd():
    """Everything an added token can ask for, and a prefix space."""
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), normalizer=normalizers.NFC(), size=400, added=PLAIN + [
        AddedToken("<mask>", special=True, normalized=False, lstrip=True, rstrip=True),
        AddedToken("wholeword", special=False, normalized=True, single_word=True),
        AddedToken("special\u0065\u0301", special=False, normalized=True, lstrip=True),
    ])
    tok.post_processor = processors.TemplateProcessing(single="<|im_start|> $A <|im_end|>", pair="$A $B", special_tokens=[
        ("<|im_start|>", tok.token_to_id("<|im_start|>")), ("<|im_end|>", tok.token_to_id("<|im_end|>"))])
    return tok


def sentence_pieces(metaspace=None):
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    specials = [AddedToken(s, special=True, normalized=False) for s in ["<unk>", "<s>", "</s>"]]
    if metaspace:
        tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=metaspace[0], split=metaspace[1])
        tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
                                        + ([decoders.Strip(" ", 1, 0)] if metaspace[0] != "never" else []))
    else:
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    alphabet = sorted(set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'\"()[]{}<>=+-*/&|%#@\u2581\u00e9\u00df\n"))
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False,
                                  special_tokens=specials + [AddedToken("<0x%02X>" % b, normalized=False) for b in range(256)])
    words = TRAINING if metaspace and metaspace[1] else TRAINING.replace("\n", " \n ").split(" ")
    tok.train_from_iterator([words] if isinstance(words, str) else words, trainer)
    # The bytes are ordinary entries of the vocabulary, not tokens to look for in text.
    data = json.loads(tok.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    tok = Tokenizer.from_str(json.dumps(data))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tok


def cases(tok, all_texts):
    out = []
    for text in all_texts:
        ids = tok.encode(text, add_special_tokens=False).ids
        out.append({"text": text, "ids": ids, "prompt": tok.encode(text).ids, "decoded": tok.decode(ids, skip_special_tokens=False),
                    "visible": tok.decode(ids, skip_special_tokens=True)})
    return out


def write(name, value):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


def compact(all_cases):
    """Leaves out what follows from the rest."""
    for c in all_cases:
        if c["decoded"] == c["text"]:
            del c["decoded"]
        if c["visible"] == c.get("decoded", c["text"]):
            del c["visible"]
        if c["prompt"] == c["ids"]:
            del c["prompt"]
    return all_cases


def main():
    if len(sys.argv) > 1:
        tok = Tokenizer.from_file(os.path.join(sys.argv[1], "tokenizer.json"))
        write("smollm2-encode.json", compact(cases(tok, texts() + long_texts())))
        return
    for name, tok in {
        "smollm": smollm(), "digit-runs": digit_runs(), "llama3": llama3(), "qwen2": qwen2(), "qwen35": qwen35(), "o200k": o200k(), "gpt2-odd": gpt2_odd(),
        "llama2": sentence_pieces(), "metaspace-first": sentence_pieces(("first", False)), "metaspace-always": sentence_pieces(("always", True)),
    }.items():
        write(name + ".tokenizer.json", json.loads(tok.to_str()))
        write(name + ".encode.json", compact(cases(tok, texts())))


if __name__ == "__main__":
    main()
