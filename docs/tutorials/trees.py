"""Write my.trees: 4,000 parsed sentences in brackets, one a line."""

import random

random.seed(1)


def noun_phrase(depth: int = 0) -> str:
    noun = random.choice(["dog", "teacher", "telescope", "garden", "ship", "letter"])
    words = f"(DT {random.choice(['the', 'a', 'every'])})"
    if random.random() < 0.4:
        words += f" (JJ {random.choice(['old', 'small', 'red'])})"
    phrase = f"(NP {words} (NN {noun}))"
    if depth < 2 and random.random() < 0.3:
        preposition = random.choice(["in", "near", "of"])
        phrase = f"(NP {phrase} (PP (IN {preposition}) {noun_phrase(depth + 1)}))"
    return phrase


def verb_phrase() -> str:
    if random.random() < 0.3:
        return f"(VP (VBD {random.choice(['slept', 'arrived', 'fell'])}))"
    return f"(VP (VBD {random.choice(['saw', 'found', 'painted'])}) {noun_phrase()})"


with open("my.trees", "w", encoding="utf-8") as file:
    for _ in range(4_000):
        file.write(f"(S {noun_phrase()} {verb_phrase()} (. .))\n")
