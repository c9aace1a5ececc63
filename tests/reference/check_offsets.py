"""Ids and offsets of random texts, moonstill's and those of the tokenizers library.

    python tests/reference/check_offsets.py [--texts N] [--seed S] [TOKENIZER.JSON...]

By default: the tokenizers beside the repository and small ones made here, one for each step that
moonstill has. Ids must be equal. Offsets there count characters, here bytes, which are widened to
characters first; then they must be equal too, but for what moonstill gives more exactly:
- what NFC or Replace made of several characters has all of them, not one of them;
- an added token that takes the spaces beside it has its spelling alone.
Trimming is switched off: here nothing is trimmed. MS_LIB names the library, default
build/libmoonstill.so.
"""

import argparse
import ctypes
import json
import os
import random
import tempfile
import unicodedata

from tokenizers import Tokenizer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SHARED = os.environ.get("MS_SHARED", os.path.join(ROOT, "..", "shared"))
DATA = os.path.join(SHARED, "data", "tokenizers")
NAMES = ["qwen3", "gpt2", "gpt-neox-20b", "falcon", "phi-3-mini", "mistral-v1-minueza-32m-chat",
         "torchtune-assets"] + ["tiny-neural-api/tiny_bpe_%s_tokenizer.json" % name for name in (
             "bytelevel", "bytelevel_noregex", "metaspace", "digits_bytelevel", "split_qwen2",
             "split_cl100k", "split_o200k")]

C = ctypes.CDLL(os.environ.get("MS_LIB", os.path.join(ROOT, "build", "libmoonstill.so")))
C.ms_last_error.restype = ctypes.c_char_p


class Ours:
    def __init__(self, path):
        self.p = ctypes.c_void_p()
        self.check(C.ms_tokenizer_open(path.encode(), ctypes.byref(self.p)))

    @staticmethod
    def check(status):
        if status:
            raise RuntimeError(C.ms_last_error().decode())

    def encode(self, text, special):
        data = text.encode()
        room = 3 * len(data) + 64
        ids, offsets = (ctypes.c_int32 * room)(), (ctypes.c_int32 * (2 * room))()
        n = ctypes.c_int64()
        self.check(C.ms_tokenizer_encode(self.p, data, ctypes.c_int64(len(data)), int(special), 1, None,
                                         ctypes.c_int64(0), ids, offsets, ctypes.c_int64(room),
                                         ctypes.byref(n)))
        return ids[:n.value], [(offsets[2 * i], offsets[2 * i + 1]) for i in range(n.value)]


# ---- small tokenizers, one for each step ----

def byte_chars():
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or (b >= 0xA1 and b != 0xAD)]
    other = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(other)) for b in range(256)]


def added(vocab):
    """Added tokens of each kind, behind the vocabulary: the library takes no other ids."""
    kinds = [("<s>", {}), ("<l>", dict(lstrip=True)), ("<r>", dict(rstrip=True)),
             ("<lr>", dict(lstrip=True, rstrip=True)), ("<n>", dict(normalized=True)),
             ("a b", dict(normalized=True, special=False)), ("cat", dict(single_word=True)),
             ("<think>", dict(special=False))]
    return [dict(dict(id=len(vocab) + i, content=content, special=True, normalized=False,
                      single_word=False, lstrip=False, rstrip=False), **flags)
            for i, (content, flags) in enumerate(kinds)]


def byte_level(tokens, **change):
    chars = byte_chars()
    vocab = {c: b for b, c in enumerate(chars)}
    pairs = []
    for token in tokens:  # its bytes are merged from the left
        token = "".join(chars[b] for b in token.encode())
        for n in range(1, len(token)):
            if token[:n + 1] not in vocab:
                pairs.append([token[:n], token[n]])
                vocab[token[:n + 1]] = len(vocab)
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                 end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                 ignore_merges=change.pop("ignore_merges", False), vocab=vocab, merges=pairs)
    step = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=True)
    return dict(dict(version="1.0", truncation=None, padding=None, added_tokens=added(vocab), normalizer=None,
                     pre_tokenizer=step, post_processor=None, decoder=step, model=model), **change)


def characters(**change):
    signs = "▁ab<s>é中~lr \n\t.,!0123xyz_"
    vocab = {c: i for i, c in enumerate(["<unk>"] + sorted(set(signs)))}
    merges = [["a", "b"], ["▁", "a"], ["▁", "ab"], ["中", "中"], ["<unk>", "a"]]
    if change.pop("bytes", False):
        for b in range(256):
            vocab["<0x%02X>" % b] = len(vocab)
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    model = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None,
                 end_of_word_suffix=None, fuse_unk=change.pop("fuse_unk", False),
                 byte_fallback=change.pop("byte_fallback", False), ignore_merges=False, vocab=vocab,
                 merges=merges)
    return dict(dict(version="1.0", truncation=None, padding=None, added_tokens=added(vocab), normalizer=None,
                     pre_tokenizer=None, post_processor=None, decoder=None, model=model), **change)


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def split(pattern, behavior, invert=False):
    return dict(type="Split", pattern=pattern, behavior=behavior, invert=invert)


def replace(pattern, content):
    return dict(type="Replace", pattern=pattern, content=content)


def made():
    tokens = ["abc", " a", "é", "中文", "日", "a\u0301", "er", "the", " the", "12", "ca", "🦙"]
    nfc, prepend = dict(type="NFC"), dict(type="Prepend", prepend="▁")
    space = replace(dict(String=" "), "▁")
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    yield "byte-level", byte_level(tokens)
    yield "ignore_merges", byte_level(tokens, ignore_merges=True)
    yield "prefix space", byte_level(tokens, pre_tokenizer=dict(level, add_prefix_space=True,
                                                                use_regex=True))
    yield "NFC", byte_level(tokens, normalizer=nfc)
    yield "replace", byte_level(tokens, normalizer=sequence(
        "normalizers", replace(dict(Regex="[0-9]"), "é"), replace(dict(String="b"), "12")))
    yield "replace several", byte_level(tokens, normalizer=replace(dict(Regex="\\s+"), " "))
    yield "replace by nothing", byte_level(tokens, normalizer=replace(dict(Regex="[aé]"), ""))
    yield "NFC, prepend", byte_level(tokens, normalizer=sequence("normalizers", nfc, prepend, space))
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield "split " + behavior, byte_level(tokens, pre_tokenizer=sequence(
            "pretokenizers", split(dict(Regex="\\s|[.,]"), behavior), level))
    for kind in ("Whitespace", "WhitespaceSplit"):
        yield kind, byte_level(tokens, pre_tokenizer=sequence("pretokenizers", dict(type=kind), level))
    yield "digits", byte_level(tokens, pre_tokenizer=sequence(
        "pretokenizers", dict(type="Digits", individual_digits=True),
        dict(type="Punctuation", behavior="Contiguous"), dict(level, add_prefix_space=True)))
    for fuse in (False, True):
        yield "unknown, fused %s" % fuse, characters(fuse_unk=fuse)
    yield "bytes", characters(byte_fallback=True, bytes=True)
    yield "prepend, bytes", characters(byte_fallback=True, bytes=True,
                                       normalizer=sequence("normalizers", prepend, space))
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            yield "metaspace %s %s" % (scheme, cut), characters(fuse_unk=True, pre_tokenizer=dict(
                type="Metaspace", replacement="▁", prepend_scheme=scheme, split=cut))
    file = byte_level(tokens)
    ids = {t["content"]: t["id"] for t in file["added_tokens"]}
    yield "around", dict(file, post_processor=dict(
        type="TemplateProcessing", single=[{"SpecialToken": dict(id="<s>", type_id=0)},
                                           {"Sequence": dict(id="A", type_id=0)},
                                           {"SpecialToken": dict(id="<l>", type_id=0)}], pair=[],
        special_tokens={t: dict(id=t, ids=[ids[t]], tokens=[t]) for t in ("<s>", "<l>")}))


# ---- texts ----

SIGNS = ["a", "b", "ab", "abc", " ", "  ", "\n", "\t", "\u3000", "\u00a0", "the", " the", "cat",
         "_", "1", "12", "345", ".", ",", "!", "é", "e\u0301", "a\u0301\u0323", "\u0958",
         "\u1100\u1161\u11a8", "각", "\u2126", "\u0301", "\u0323\u0301", "a\u0d3b\u0301", "中", "文",
         "中文", "日本語", "🦙", "👩‍👧", "\u200d", "ﬁ", "ß", "İ", "Ж", "ار", "▁", "<s>", "<l>", "<r>",
         "<lr>", "<n>", "<think>", "<unk>", "a b", "'s", "\0", "~", "\u0f43"]


def text_of(rng, specials):
    kind = rng.random()
    if kind < 0.1:
        signs = [chr(c) for c in (rng.randrange(0x20, 0x30000) for _ in range(rng.randrange(20)))
                 if not 0xD800 <= c < 0xE000]
        return "".join(signs)
    signs = SIGNS + specials if specials else SIGNS
    return "".join(rng.choice(signs) for _ in range(rng.randrange(40 if kind < 0.9 else 300)))


# ---- comparing ----

def to_characters(text, offsets):
    """Byte ranges, widened to the characters that they touch."""
    first, last = [], []
    for at, c in enumerate(text):
        n = len(c.encode())
        first += [at] * n
        last += [at + 1] * n
    first.append(len(text))
    return [(first[a], last[b - 1] if b > a else first[a]) for a, b in offsets]


def spelling(text, token, offset):
    """An added token's range without the spaces that it takes."""
    a, b = offset
    part = text[a:b]
    left, right = len(part) - len(part.lstrip()), len(part) - len(part.rstrip())
    return a + (left if token["lstrip"] else 0), b - (right if token["rstrip"] else 0)


def more_exact(text, ours, theirs, rewrites):
    """Whether ours has all of the characters that a step made another one of. Marks that are put in
    order have each other's places there, so with NFC both need only lie in one character with its
    marks, which NFC changes."""
    if rewrites:
        return ours[0] <= theirs[0] and theirs[1] <= ours[1]
    start, end = min(ours[0], theirs[0]), max(ours[1], theirs[1])
    while start and unicodedata.combining(text[start]):
        start -= 1
    while end < len(text) and unicodedata.combining(text[end]):
        end += 1
    part = text[start:end]
    return ours[0] <= theirs[0] and unicodedata.normalize("NFC", part) != part


def compare(name, file, count, seed):
    rng = random.Random("%s %d" % (name, seed))
    for step in [file.get("post_processor") or {}] + (file.get("post_processor") or {}).get("processors", []):
        if "trim_offsets" in step:
            step["trim_offsets"] = False
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(file, f)
        theirs, ours = Tokenizer.from_file(path), Ours(path)
    tokens = {t["id"]: t for t in file["added_tokens"]}
    rewrites = "Regex" in json.dumps(file["normalizer"])
    exact = tokens_seen = 0
    for _ in range(count):
        text = text_of(rng, [t["content"] for t in file["added_tokens"]][:30])
        want = theirs.encode(text, add_special_tokens=True)
        ids, offsets = ours.encode(text, True)
        assert ids == want.ids, "%s: ids of %r: %s, expected %s" % (name, text, ids, want.ids)
        size = len(text.encode())
        assert all(0 <= a <= b <= size for a, b in offsets), (name, text, offsets)
        assert offsets == sorted(offsets), (name, text, offsets)
        for i, (mine, other) in enumerate(zip(to_characters(text, offsets), want.offsets)):
            tokens_seen += 1
            if want.special_tokens_mask[i] and offsets[i][0] == offsets[i][1]:
                assert other == (0, 0), (name, text)  # a token around the text
                continue
            if ids[i] in tokens:
                other = spelling(text, tokens[ids[i]], other)
            if mine == other:
                continue
            exact += 1
            assert more_exact(text, mine, other, rewrites), "%s: %s: token %d, %s: %s, expected %s" % (
                name, ascii(text), i, want.tokens[i], mine, other)
    print("%-60s %6d texts, %8d tokens, %6d more exact" % (name, count, tokens_seen, exact), flush=True)
    return count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    known = [os.path.join(DATA, n if n.endswith(".json") else n + "/tokenizer.json") for n in NAMES]
    files = args.files or [path for path in known if os.path.exists(path)]
    total = 0
    for path in files:
        with open(path, encoding="utf-8") as f:
            total += compare(os.path.relpath(path, DATA), json.load(f), args.texts, args.seed)
    for name, file in made() if not args.files else ():
        total += compare(name, file, args.texts, args.seed)
    print(total, "texts")


if __name__ == "__main__":
    main()
