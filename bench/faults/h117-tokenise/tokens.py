"""A small byte-pair tokeniser in plain Python."""

import random
import time
from collections import Counter

from _train.stamp import stamp

WORDS = ("shard", "tensor", "gradient", "loss", "epoch", "batch", "layer", "token", "rank")


def tokenise_corpus(seconds: float) -> int:
    stamp()
    end = time.monotonic() + seconds
    merges: dict[tuple[str, str], str] = {}
    documents = 0
    while time.monotonic() < end:
        text = make_document(documents)  # <- here
        learn_merge(text, merges)  # <- here
        encode(text, merges)  # <- here
        documents += 1
        if documents % 500 == 0:
            print(f"tokenised {documents} documents", flush=True)
    return documents


def make_document(number: int) -> str:
    draw = random.Random(number)
    return " ".join(draw.choice(WORDS) for _ in range(200))  # <- here


def learn_merge(text: str, merges: dict[tuple[str, str], str]) -> None:
    pairs = Counter(zip(text, text[1:], strict=False))  # <- here
    pair, _ = pairs.most_common(1)[0]
    if len(merges) < 300:
        merges[pair] = "".join(pair)


def encode(text: str, merges: dict[tuple[str, str], str]) -> list[str]:
    symbols: list[str] = []
    for letter in text:  # <- here
        if symbols and (symbols[-1], letter) in merges:  # <- here
            symbols[-1] = merges[symbols[-1], letter]  # <- here
        else:
            symbols.append(letter)  # <- here
    return symbols
