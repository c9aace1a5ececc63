"""Loading of conversations beside Hugging Face's datasets: reading JSON lines, writing them by the model's
template and encoding them, for the first time and again from the cache.

    python tests/bench/datasets.py --data chats.jsonl --tokenizer FOLDER [--repeat 3] [--processes 2]

Needs datasets and transformers from PyPI. Both are run in turn, each time with an empty cache; the medians are
printed. It fails when the two do not give equally many tokens."""
import argparse, os, statistics, subprocess, sys, tempfile, time

OURS = """
local data = ms.dataset.open(%r, ms.chat.open(%r), { cache = %r, max_tokens = 100000, quiet = true })
local sum = 0
for k = 1, data:count() do sum = sum + select(2, data.samples:range(k)) end
print(('%%.0f'):format(sum))
"""

THEIRS = """
import os, sys
os.environ['HF_HUB_OFFLINE'] = '1'
import datasets, transformers
datasets.disable_progress_bars()
data, tokenizer, cache, processes = sys.argv[1:]
tok = transformers.AutoTokenizer.from_pretrained(tokenizer)
def encode(batch):
    texts = [tok.apply_chat_template(m, tokenize=False) for m in batch['messages']]
    return {'input_ids': tok(texts, add_special_tokens=False)['input_ids']}
rows = datasets.load_dataset('json', data_files=data, split='train', cache_dir=cache)
rows = rows.map(encode, batched=True, num_proc=int(processes) if int(processes) > 1 else None,
                remove_columns=rows.column_names)
print(sum(len(b.values) for c in [rows.data.column('input_ids')] for b in c.chunks))
"""


def run(command):
    began = time.time()
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return time.time() - began, int(out.split()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--data', required=True)
    p.add_argument('--tokenizer', required=True)
    p.add_argument('--repeat', type=int, default=3)
    p.add_argument('--processes', default='2')
    p.add_argument('--program', default='build/moonstill')
    a = p.parse_args()
    times = {name: [] for name in ('ours, first', 'ours, again', 'datasets, first', 'datasets, again')}
    for _ in range(a.repeat):
        counts = set()
        with tempfile.TemporaryDirectory() as cache:
            ours = [a.program, '-e', OURS % (a.data, a.tokenizer, cache)]
            theirs = [sys.executable, '-c', THEIRS, a.data, a.tokenizer, cache + '/hf', a.processes]
            for name, command in (('ours', ours), ('datasets', theirs)):
                for which in ('first', 'again'):
                    seconds, tokens = run(command)
                    times[name + ', ' + which].append(seconds)
                    counts.add(tokens)
        if len(counts) > 1:
            sys.exit('not the same number of tokens: %s' % sorted(counts))
    size = os.path.getsize(a.data) / 1e6
    for name, values in times.items():
        print('%-16s %7.2f s  %6.1f MB/s' % (name, statistics.median(values), size / statistics.median(values)))


main()
