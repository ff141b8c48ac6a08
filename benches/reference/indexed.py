#!/usr/bin/env python3
"""Megatron's `.bin`/`.idx` in numpy, written from the description of the format, sharing no code with Oases.

    python indexed.py read PREFIX              one JSON line: counts, dtype, and a digest of tokens and documents
    python indexed.py read PREFIX --dump       then one JSON line per document: a list of its sequences, each a list
                                               of tokens
    python indexed.py write PREFIX < LINES     one document per line, a list of tokens; a list of lists is a document
                                               of several sequences
    python indexed.py --self-test              writes and reads back, and compares with bytes spelled out by hand

PREFIX.bin holds the tokens of all sequences one after the other, with no header. PREFIX.idx, little-endian:

    9 bytes     b"MMIDIDX\\0\\0"
    u64         version, 1
    u8          dtype: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
    u64         S, the number of sequences
    u64         D, the number of entries of the document index: one more than there are documents
    i32 × S     tokens of each sequence
    i64 × S     where each sequence starts in PREFIX.bin, in bytes
    i64 × D     the sequence with which each document begins; the first entry is 0, the last is S
    i8 × S      mode of each sequence; only multimodal data has it

The digest is the SHA-256 of, for each document, its number of tokens and then the tokens, all as little-endian i64.
It therefore depends neither on the dtype nor on how a document is cut into sequences.
"""

import argparse
import hashlib
import json
import pathlib
import struct
import sys
import tempfile

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def suffixed(prefix, suffix):
    """The prefix may itself contain dots, so that `with_suffix` would cut it."""
    return pathlib.Path(f"{prefix}{suffix}")


def require(holds, message):
    if not holds:
        sys.exit(f"error: {message}")


def read(prefix):
    """All documents, each a list of arrays, and the name of the dtype."""
    index, tokens_at = suffixed(prefix, ".idx").read_bytes(), suffixed(prefix, ".bin")
    require(len(index) >= HEADER.size, f"{prefix}.idx has {len(index)} bytes, its header {HEADER.size}")
    magic, version, code, sequences, entries = HEADER.unpack_from(index)
    require(magic == MAGIC, f"{prefix}.idx begins with {magic!r}, not {MAGIC!r}")
    require(version == 1, f"{prefix}.idx has version {version}, not 1")
    require(code in DTYPES, f"{prefix}.idx has the unknown dtype {code}")
    expected = HEADER.size + 12 * sequences + 8 * entries
    require(len(index) in (expected, expected + sequences), f"{prefix}.idx has {len(index)} bytes, not {expected}")

    dtype = np.dtype(DTYPES[code])
    lengths = np.frombuffer(index, "<i4", sequences, HEADER.size)
    starts = np.frombuffer(index, "<i8", sequences, HEADER.size + 4 * sequences)
    documents = np.frombuffer(index, "<i8", entries, HEADER.size + 12 * sequences)
    in_order = entries >= 1 and documents[0] == 0 and documents[-1] == sequences and (np.diff(documents) >= 0).all()
    require(in_order, f"{prefix}.idx: documents do not run from 0 to {sequences} in order")

    tokens = np.fromfile(tokens_at, dtype)
    require(tokens_at.stat().st_size == tokens.nbytes, f"{tokens_at} does not hold whole tokens")
    require((starts % dtype.itemsize == 0).all(), f"{prefix}.idx: a sequence starts within a token")
    first = starts // dtype.itemsize
    inside = (lengths >= 0).all() and (first >= 0).all() and (first + lengths <= len(tokens)).all()
    require(inside, f"{prefix}.idx: a sequence lies outside the {len(tokens)} tokens of {tokens_at}")
    pieces = [tokens[a : a + n] for a, n in zip(first, lengths)]
    return [pieces[a:b] for a, b in zip(documents[:-1], documents[1:])], dtype.name


def write(prefix, documents, dtype_name):
    """Writes documents, each a list of lists of tokens."""
    dtype = np.dtype(DTYPES[CODES[dtype_name]])
    pieces = [np.asarray(piece, np.int64) for document in documents for piece in document]
    tokens = np.concatenate([np.zeros(0, np.int64), *pieces])
    limits = np.iinfo(dtype)
    fits = not len(tokens) or (tokens.min() >= limits.min and tokens.max() <= limits.max)
    require(fits, f"tokens do not fit {dtype_name}")
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * dtype.itemsize if len(pieces) else np.zeros(0)
    index = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    suffixed(prefix, ".bin").write_bytes(tokens.astype(dtype).tobytes())
    with open(suffixed(prefix, ".idx"), "wb") as file:
        file.write(HEADER.pack(MAGIC, 1, CODES[dtype_name], len(pieces), len(index)))
        for values, kind in ((lengths, "<i4"), (starts, "<i8"), (index, "<i8")):
            file.write(values.astype(kind).tobytes())


def digest(documents):
    sha = hashlib.sha256()
    for document in documents:
        tokens = np.concatenate([np.zeros(0, np.int64), *document]).astype("<i8")
        sha.update(struct.pack("<q", len(tokens)))
        sha.update(tokens.tobytes())
    return sha.hexdigest()


def summary(documents, dtype_name):
    lengths = [sum(len(piece) for piece in document) for document in documents]
    return {
        "documents": len(documents),
        "sequences": sum(len(document) for document in documents),
        "tokens": int(sum(lengths)),
        "shortest": min(lengths, default=0),
        "longest": max(lengths, default=0),
        "dtype": dtype_name,
        "sha256": digest(documents),
    }


def self_test():
    documents = [[[1, 2, 3]], [[65535], [4, 5]], []]
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/a.b"
        write(prefix, documents, "uint16")
        # Spelled out, so that a mistake that reader and writer share is seen.
        index = "4d4d49444944580000 0100000000000000 08 0300000000000000 0400000000000000"
        index += "03000000 01000000 02000000 0000000000000000 0600000000000000 0800000000000000"
        index += "0000000000000000 0100000000000000 0300000000000000 0300000000000000"
        assert suffixed(prefix, ".idx").read_bytes() == bytes.fromhex(index)
        assert suffixed(prefix, ".bin").read_bytes() == bytes.fromhex("010002000300 ffff 04000500")
        for dtype in ("int32", "uint16", "int64"):
            write(prefix, documents, dtype)
            back, name = read(prefix)
            assert name == dtype and [[piece.tolist() for piece in document] for document in back] == documents
            assert digest(back) == digest(documents)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--self-test", action="store_true")
    commands = p.add_subparsers(dest="command")
    reading = commands.add_parser("read", help="counts and digest of PREFIX.bin and PREFIX.idx")
    reading.add_argument("prefix")
    reading.add_argument("--dump", action="store_true", help="one JSON line per document as well")
    writing = commands.add_parser("write", help="PREFIX.bin and PREFIX.idx from JSON lines on stdin")
    writing.add_argument("prefix")
    writing.add_argument("--dtype", choices=sorted(CODES), default="int32")
    a = p.parse_args()
    if a.self_test:
        return self_test()
    if a.command is None:
        p.error("a command is needed: read or write")
    if a.command == "write":
        lines = [json.loads(line) for line in sys.stdin if line.strip()]
        nested = [line if line and isinstance(line[0], list) else [line] for line in lines]
        write(a.prefix, nested, a.dtype)
    documents, dtype_name = read(a.prefix)
    print(json.dumps(summary(documents, dtype_name)))
    if a.command == "read" and a.dump:
        for document in documents:
            print(json.dumps([piece.tolist() for piece in document]))


if __name__ == "__main__":
    main()
