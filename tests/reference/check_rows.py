"""python tests/reference/check_rows.py [SEED] [FILES]: random tables as Python's csv reads them (and
pandas, where it is there), random rows of JSON in every layout, plain, .gz and .zst (where zstandard is
there), against what moonstill reads."""

import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import pandas
except ImportError:
    pandas = None
try:
    import zstandard
except ImportError:
    zstandard = None

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
draw = random.Random(seed)
folder = tempfile.mkdtemp()


def field():
    kind = draw.randrange(6)
    if kind < 2:
        return "".join(draw.choice("ab1 é") for _ in range(draw.randrange(4)))
    if kind < 4:
        inner = "".join(draw.choice('ab,\t\r\n é"') for _ in range(draw.randrange(12)))
        return '"' + inner.replace('"', '""') + '"'
    if kind == 4:
        return "".join(draw.choice('ab"') for _ in range(draw.randrange(5)))
    long = 70000 if draw.randrange(500) == 0 else 5
    inner = "".join(draw.choice("ab,") for _ in range(draw.randrange(long)))
    return '"' + inner + '"' + draw.choice(["", "", "x", 'x"y'])


def table(delimiter):
    width = draw.randrange(1, 4)
    end = draw.choice(["\n", "\r\n", "\r", None])
    lines = [delimiter.join(["one", "two", "three"][:width])]
    for _ in range(draw.randrange(6)):
        n = width if draw.randrange(8) else draw.randrange(1, 5)
        lines.append("" if draw.randrange(12) == 0 else delimiter.join(field() for _ in range(n)))
    text = "".join(line + (end or draw.choice(["\n", "\r\n", "\r"])) for line in lines)
    return text if draw.randrange(3) else text.rstrip("\r\n")


def value(depth):
    kind = draw.randrange(7 if depth < 3 else 5)
    if kind == 0:
        return draw.choice([None, True, False, 0, -1, 2**40, 0.5, 1e-7])
    if kind < 5:
        return "".join(draw.choice('abc"\\[]{}, \n\té🦙') for _ in range(draw.randrange(20)))
    if kind == 5:
        return [value(depth + 1) for _ in range(draw.randrange(4))]
    return {"k%d" % draw.randrange(9): value(depth + 1) for _ in range(draw.randrange(4))}


def rows():
    def long():
        return "x" * (draw.randrange(100000) if draw.randrange(60) == 0 else 1)

    return [{"a": value(0), "b": value(0), "c": long()} for _ in range(draw.randrange(2, 6))]


def layout(list_, kind):
    indent, ascii_ = draw.choice([1, 2, 4]), draw.randrange(2) == 0
    if kind == 0:
        return "\n".join(json.dumps(r, ensure_ascii=ascii_) for r in list_)
    if kind == 1:
        return json.dumps(list_, ensure_ascii=ascii_)
    if kind == 2:
        return json.dumps(list_, indent=indent, ensure_ascii=ascii_)
    if kind == 3:
        return "\n".join(json.dumps(r, indent=indent, ensure_ascii=ascii_) for r in list_)
    return json.dumps({"version": 1, "data": list_}, indent=draw.choice([None, 2]))


def write(name, text):
    """The file plain or compressed, also as several members; returns its path."""
    data, path = text.encode(), os.path.join(folder, name)
    way = draw.randrange(3 if zstandard else 2)
    cut = draw.randrange(len(data) + 1)
    parts = [data] if draw.randrange(2) else [data[:cut], data[cut:]]
    if way:
        path += [".gz", ".zst"][way - 1]
        compress = gzip.compress if way == 1 else zstandard.ZstdCompressor().compress
        data = b"".join(compress(part) for part in parts)
    with open(path, "wb") as file:
        file.write(data)
    return path


def expected_table(text, delimiter):
    """The rows that Python's csv reads, or the words of an error."""
    csv.field_size_limit(1 << 30)
    *_, last = csv.reader(io.StringIO(text + "\nlast", newline=""), delimiter=delimiter)
    if last != ["last"]:
        return "is never closed"
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    list_ = []
    for row in reader:
        if None in row:
            return "and the header names"
        list_.append({k: v for k, v in row.items() if v is not None})
    return list_


def is_plain(text, delimiter, want):
    """pandas takes blanks away at the beginning of a line, passes over lines of nothing else, has a value
    for columns that a row does not reach, and mistakes a quote behind a lone \\r: not compared."""
    if any(line[:1] in " \t" for line in text.split("\n") if line) or "\r" in text.replace("\r\n", ""):
        return False
    width = text.split("\n")[0].count(delimiter) + 1
    return not any(len(r) < width or not "".join(r.values()).strip() for r in want)


def like_pandas(text, delimiter, want):
    file = io.StringIO(text, newline="")
    frame = pandas.read_csv(file, sep=delimiter, dtype=str, na_filter=False, index_col=False)
    return frame.to_dict("records") == want


def main():
    files = []  # path, expected
    tables = compared = 0
    for i in range(count):
        if i % 2:
            delimiter, ending = draw.choice([(",", "csv"), ("\t", "tsv")])
            text = table(delimiter)
            want = expected_table(text, delimiter)
            tables += 1
            if pandas and isinstance(want, list) and want and is_plain(text, delimiter, want):
                compared += 1
                assert like_pandas(text, delimiter, want), (text, want)
            files.append((write("%d.%s" % (i, ending), text), want))
        else:
            want = rows()
            text = layout(want, draw.randrange(5))
            files.append((write("%d.%s" % (i, draw.choice(["json", "jsonl"])), text), want))
    env = dict(os.environ, LUA_PATH="lua/?.lua;lua/?/init.lua;;")
    env.setdefault("MS_LIB", "build/libmoonstill.so")
    command = ["luajit", "tests/programs/read_rows.lua", "-"]
    names = "\n".join(path for path, _ in files)
    got = subprocess.run(command, input=names, capture_output=True, text=True, env=env, check=True)
    lines = got.stdout.splitlines()
    assert len(lines) == len(files), got.stderr
    errors = 0
    for line, (path, want) in zip(lines, files):
        result = json.loads(line)
        if isinstance(want, str):
            errors += 1
            assert path in result.get("error", ""), (path, want, line)
            assert want in result["error"] or "header names" in result["error"], (path, want, line)
        else:
            assert result.get("rows") == want, (path, want, line)
    words = "%d files alike: %d tables (%d of them refused by both, %d like pandas'), %d of JSON"
    print(words % (len(files), tables, errors, compared, len(files) - tables))


main()
