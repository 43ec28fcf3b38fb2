#!/usr/bin/env python3
"""Packs text into token shards with any tokenizer.json (packages tokenizers, h5py, numpy): docs/models.md.

usage: pack_tokenizer_json.py TOKENIZER_JSON END_OF_DOCUMENT OUT FILE [FILE ...]
A FILE is a document; each line of a *.jsonl is one, under "text". OUT is a folder, which is made."""
import json, pathlib, sys, zlib
import h5py, numpy as np
from tokenizers import Tokenizer

SHARD_TOKENS = 1 << 27  # a shard is closed before it grows beyond this; a document is never cut
if len(sys.argv) < 5: sys.exit(__doc__)
model, end, out = pathlib.Path(sys.argv[1]).read_bytes(), sys.argv[2], pathlib.Path(sys.argv[3])
tokenizer = Tokenizer.from_str(model.decode())
tokenizer.no_truncation(), tokenizer.no_padding()
vocabulary, end_id = max(tokenizer.get_vocab().values()) + 1, tokenizer.token_to_id(end)
if end_id is None: sys.exit(f"{sys.argv[1]} has no token {end}: name the one that ends documents")
out.mkdir(parents=True)

def texts():
    for name in map(pathlib.Path, sys.argv[4:]):
        if name.suffix != ".jsonl": yield name.read_text(encoding="utf-8")
        else: yield from (json.loads(line)["text"] for line in name.open(encoding="utf-8"))

def write(documents, number):
    tokens = np.concatenate(documents).astype("<u2" if vocabulary <= 1 << 16 else "<u4")
    starts = np.cumsum([0] + [len(d) for d in documents[:-1]]).astype("<u8")
    temporary = out / f"tokens-{number:06}.h5.tmp"
    with h5py.File(temporary, "w") as file:
        file["tokens"], file["documents"], file["tokenizer_model"] = tokens, starts, np.frombuffer(model, "u1")
        file.attrs.update(format="annulus-tokens", version=1, tokenizer="tokenizer.json", vocabulary=vocabulary,
                          end_of_document=end_id, fingerprint=f"crc32:{zlib.crc32(model):08x}",
                          creator="pack_tokenizer_json.py", checksum=zlib.crc32(starts.tobytes(), zlib.crc32(tokens.tobytes())))
    temporary.rename(out / f"tokens-{number:06}.h5")

shard, held, shards = [], 0, 0
for ids in (np.array(tokenizer.encode(t, add_special_tokens=False).ids + [end_id], "<u4") for t in texts()):
    if shard and held + len(ids) > SHARD_TOKENS: write(shard, shards); shard, held, shards = [], 0, shards + 1
    shard.append(ids); held += len(ids)
if shard: write(shard, shards)
