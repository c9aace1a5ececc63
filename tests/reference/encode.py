"""python tests/reference/encode.py FOLDER: ids by tokenizers of each text in FOLDER/asked.json."""

import json
import sys

from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
for text in json.load(open(sys.argv[1] + "/asked.json")):
    print(*tokenizer.encode(text, add_special_tokens=False).ids)
