"""Makes golden.json: token ids and vectors of the reference implementations.

    pip install tokenizers onnxruntime numpy
    python golden.py FOLDER   # of all-minilm-l6-v2-q.onnx and its tokenizer.json

Written by tokenizers 0.22 or newer, which reads special tokens in a text as such: none stands here.
"""

import json
import pathlib
import sys

import numpy
import onnxruntime
import tokenizers

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "That is not what I wanted. Explain it in two or three plain sentences.",
    "No numbered list, no bold and no 'Final answer' label, please.",
    "Please drop the list and write flowing prose instead.",
    "Explain every step in detail: what the student calculated, why it is right, and how it could be explained better.",
    "Be warmer: praise the student for good work.",
    "Kofi buys 4 boxes of pens. Each box holds 12 pens. Kofi gives 9 pens to friends. How many pens are left?",
    "12,345.67 * 3 = 37,037.01",
    "**Final answer: 42**",
    "UPPER CASE and MiXeD",
    "unaffable unbelievably antidisestablishmentarianism",
    "don't can't won't it's",
    "e-mail: someone@example.org, https://example.org/a?b=c#d",
    "snake_case camelCase kebab-case",
    "a+b<c>d=e|f~g^h`i$j%k&l",
    "café naïve façade Ångström",
    "cafe\u0301 e\u0308 n\u0303",
    "Straße GROẞ ß",
    "İstanbul ISTANBUL ıstanbul",
    "Ελληνικά ΣΊΣΥΦΟΣ",
    "Привет, мир! Ёлка",
    "你好世界",
    "日本語のテキスト、カタカナと漢字。",
    "한국어 문장입니다",
    "한국어",
    "สวัสดีชาวโลก",
    "नमस्ते दुनिया",
    "مرحبا بالعالم",
    "שָׁלוֹם עולם",
    "Tiếng Việt có dấu",
    "emoji 😀👍🏽 family 👨‍👩‍👧",
    "flags 🇩🇪 and symbols ★☆→←",
    "zero\u200bwidth\u200djoiner\ufeffbom",
    "soft\u00adhyphen",
    "no\u00a0break\u2009thin\u3000ideographic",
    "tab\tnew\nline\rreturn",
    "vertical\x0btab form\x0cfeed next\x85line",
    "nul\x00 bell\x07 escape\x1b[31m delete\x7f",
    "replacement \ufffd character",
    "private \ue000 use",
    "line\u2028separator paragraph\u2029separator",
    "“quotes” ‘single’ «guillemets» „low“",
    "dash – em — ellipsis … bullet •",
    "¿Qué? ¡Sí!",
    "fullwidth ＡＢＣ！１２３",
    "ligature ﬁ ﬂ and ½ ² ™ ℃",
    "math ∑ ∫ √ ≤ ≠ ∞ π",
    "currency £ € ¥ ₹ ¢",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕞𝕒𝕥𝕙",
    "𠀀𠀁 𪜀 豈 㐀",
    "combining a\u0316\u0317 x\u20dd",
    "arabic digits ٠١٢٣ devanagari १२३",
    "x" * 100,
    "y" * 101,
    "é" * 100,
    "word " * 200,
    "pneumonoultramicroscopicsilicovolcanoconiosis " * 20,
    "一" * 140,
    "!?" * 80,
    "...leading and trailing...   ",
    "##continued ##pieces",
    "x ͏ y ᠎ z",
    "Ǆ ǅ ǆ Ⅷ ⓐ",
]


def main(folder: pathlib.Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "all-minilm-l6-v2-q-tokenizer.json"))
    tokenizer.no_padding()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(folder / "all-minilm-l6-v2-q.onnx"), options)
    cases = []
    for i, text in enumerate(TEXTS):
        ids = tokenizer.encode(text).ids
        case = {"text": text, "ids": ids}
        if i < 34:
            row = numpy.array([ids], dtype=numpy.int64)
            hidden = session.run(None, {"input_ids": row, "attention_mask": numpy.ones_like(row), "token_type_ids": numpy.zeros_like(row)})[0]
            vector = hidden[0].mean(axis=0)
            case["vector"] = [round(float(v), 4) for v in vector / numpy.linalg.norm(vector)]
        cases.append(case)
    out = pathlib.Path(__file__).with_name("golden.json")
    out.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


main(pathlib.Path(sys.argv[1]))
