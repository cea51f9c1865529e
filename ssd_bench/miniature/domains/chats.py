"""Conversations of two turns: an instruction in the form of Alpaca, its output, and a second message about that output.

Both answers are made of the same pieces (words, short clauses or sentences) by fixed rules, and the second follows
from the first and the message alone. Most restate all pieces in order, so that a tiny model finds each next one beside
the last; where a message points at a piece, it is by a word that stands once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ssd_bench.miniature.domains.instructions import (
    ACTIONS,
    CATEGORIES,
    MOMENTS,
    NAMES,
    OBJECTS,
    OPPOSITES,
    TOWNS,
    WORDS,
)
from ssd_bench.miniature.domains.item import Item

FEWEST, MOST = 6, 14  # words of a list
_POOL = WORDS + NAMES + TOWNS + OBJECTS


@dataclass(frozen=True)
class _Opening:
    """A first turn and what later messages may refer to.

    Attributes:
        pieces: what the output consists of; at least three.
        between: what stands between them.
        keys: a word of each piece that stands once; of a list of words the words themselves.
        spare: a piece that the output lacks.
    """

    instruction: str
    given: str
    pieces: tuple[str, ...]
    between: str
    keys: tuple[str, ...]
    spare: str

    @property
    def output(self) -> str:
        return self.between.join(self.pieces)

    @property
    def words(self) -> bool:
        """Whether each piece is a word."""
        return self.keys == self.pieces


# A message and its answer.
Pair = tuple[str, str]


def make(rng: random.Random) -> Item:
    """One of the kinds of opening, with one of the follow-ups that it allows."""
    opening = rng.choice(OPENINGS)(rng)
    allowed = FOLLOW_UPS + (WORD_FOLLOW_UPS if opening.words else CLAUSE_FOLLOW_UPS)
    follow_up, answer = rng.choice(allowed)(rng, opening)
    row = {"instruction": opening.instruction, "input": opening.given, "output": opening.output}
    return Item(row, opening.output, ((follow_up, answer),))


def _listed(instruction: str, given: str, words: list[str], spare: str, between: str = ", ") -> _Opening:
    return _Opening(instruction, given, tuple(words), between, tuple(words), spare)


def _drawn(rng: random.Random) -> tuple[list[str], str]:
    """The words of a list and one more."""
    *words, spare = rng.sample(_POOL, rng.randint(FEWEST, MOST) + 1)
    return words, spare


def _copied(rng: random.Random) -> _Opening:
    words, spare = _drawn(rng)
    ask = rng.choice(("Repeat the list.", "Copy the items.", "Write the list once more."))
    return _listed(ask, ", ".join(words), words, spare)


def _commas(rng: random.Random) -> _Opening:
    words, spare = _drawn(rng)
    ask = rng.choice(("Put a comma after each word but the last.", "Separate the words by commas."))
    return _listed(ask, " ".join(words), words, spare)


def _lines(rng: random.Random) -> _Opening:
    words, spare = _drawn(rng)
    ask = rng.choice(("Write one word per line.", "Give each word its own line."))
    return _listed(ask, ", ".join(words), words, spare, "\n")


def _capitalised(rng: random.Random) -> _Opening:
    words, spare = _drawn(rng)
    ask = rng.choice(("Capitalise all items.", "Let every item start with a capital letter."))
    return _listed(ask, ", ".join(words), [word.capitalize() for word in words], spare.capitalize())


def _backwards(rng: random.Random) -> _Opening:
    words, spare = _drawn(rng)
    ask = rng.choice(("List the items from last to first.", "Turn the list around."))
    return _listed(ask, ", ".join(words), words[::-1], spare)


def _members(rng: random.Random) -> _Opening:
    name, other = rng.sample(tuple(CATEGORIES), 2)
    *members, spare = rng.sample(CATEGORIES[name], rng.randint(FEWEST, 8) + 1)
    mixed = members + rng.sample(CATEGORIES[other], rng.randint(3, 6))
    rng.shuffle(mixed)
    ask = rng.choice(("Name all {}.", "Which of these are {}?", "Find the {} in the input.")).format(name)
    return _listed(ask, ", ".join(mixed), [word for word in mixed if word in members], spare)


def _opposites(rng: random.Random) -> _Opening:
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in rng.sample(OPPOSITES, rng.randint(FEWEST, 10) + 1)]
    given, turned = zip(*pairs[1:])
    ask = rng.choice(("Name the opposite of every word.", "Turn each word into its opposite."))
    return _listed(ask, ", ".join(given), list(turned), pairs[0][1])


def _held(rng: random.Random) -> _Opening:
    names = tuple(rng.sample(NAMES, rng.randint(4, 8) + 1))
    held = [f"{rng.randint(2, 99)} {thing}" for thing in rng.sample(OBJECTS, len(names))]
    *pieces, spare = [f"{name} has {thing}" for name, thing in zip(names, held)]
    given = ", ".join(f"{name}: {thing}" for name, thing in zip(names[:-1], held))
    ask = rng.choice(("Say who has what.", "Write in words who has which things."))
    return _Opening(ask, given, tuple(pieces), ", ", names[:-1], spare)


def _statements(rng: random.Random) -> tuple[list[str], list[str], list[str], tuple[str, ...]]:
    """Four or five sentences, in the present and the past tense and as questions, and who they are about."""
    count = rng.randint(4, 5)
    names, things, towns = (rng.sample(pool, count) for pool in (NAMES, OBJECTS, TOWNS))
    moments = rng.sample(MOMENTS, count)
    now, past, asked = [], [], []
    for name, verb, *rest in zip(names, rng.sample(ACTIONS, count), things, moments, towns):
        end = "{} {} in {}".format(*rest)
        now.append(f"{name} {verb[0]} {end}.")
        past.append(f"{name} {verb[2]} {end}.")
        asked.append(f"Does {name} {verb[1]} {end}?")
    return now, past, asked, tuple(names)


def _pasts(rng: random.Random) -> _Opening:
    now, past, _, names = _statements(rng)
    ask = rng.choice(("Rewrite all sentences in the past tense.", "Put every sentence into the past tense."))
    return _Opening(ask, " ".join(now[:-1]), tuple(past[:-1]), " ", names[:-1], past[-1])


def _questions(rng: random.Random) -> _Opening:
    now, _, asked, names = _statements(rng)
    ask = rng.choice(("Turn every sentence into a question.", "Make each sentence a question."))
    return _Opening(ask, " ".join(now[:-1]), tuple(asked[:-1]), " ", names[:-1], asked[-1])


def _reversed(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Now write them in reverse order.", "Now from the last to the first.", "Now backwards, please."))
    return ask, opening.between.join(opening.pieces[::-1])


def _capitals(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Now in capital letters.", "Write that in upper case.", "The same in capitals, please."))
    return ask, opening.output.upper()


def _first(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Which of them comes first?", "What is the first one?", "With which one do you begin?"))
    head, *tail = opening.keys
    return ask, f"{head} comes first, then {', then '.join(tail)}."


def _last(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Which of them comes last?", "What is the last one?", "With which one do you end?"))
    *head, tail = opening.keys
    return ask, f"{tail} comes last, after {' and '.join(head)}."


def _count(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("How many are there?", "Count them.", "How many did you write?"))
    counted = ", ".join(f"{key} is {i}" for i, key in enumerate(opening.keys, start=1))
    return ask, f"{counted}: there are {len(opening.keys)}."


def _numbered(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Now with a number before each.", "Number them.", "Make that a numbered list."))
    return ask, "\n".join(f"{i}. {piece}" for i, piece in enumerate(opening.pieces, start=1))


def _dashes(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Now with a dash before each.", "Write them with dashes.", "Make bullet points of them."))
    return ask, "\n".join(f"- {piece}" for piece in opening.pieces)


def _added(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Repeat your answer and add: {}", "Say that again and end with: {}", "One more at the end: {}"))
    return _closed(ask, opening.spare), opening.between.join([*opening.pieces, opening.spare])


def _preceded(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Now begin with: {}", "Put this in front of them: {}", "One more at the start: {}"))
    return _closed(ask, opening.spare), opening.between.join([opening.spare, *opening.pieces])


def _without(rng: random.Random, opening: _Opening) -> Pair:
    left_out = rng.randrange(len(opening.pieces))
    ask = rng.choice(("Repeat that without {}.", "Leave out {}.", "The same, but drop {}."))
    kept = opening.pieces[:left_out] + opening.pieces[left_out + 1 :]
    return ask.format(opening.keys[left_out]), opening.between.join(kept)


def _replaced(rng: random.Random, opening: _Opening) -> Pair:
    at = rng.randrange(len(opening.pieces))
    ask = rng.choice(("In place of {} write: {}", "Repeat that, but for {} put: {}"))
    pieces = [*opening.pieces[:at], opening.spare, *opening.pieces[at + 1 :]]
    return _closed(ask, opening.keys[at], opening.spare), opening.between.join(pieces)


def _quoted(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Put each of them in quotes.", "Now with quotation marks around each."))
    return ask, opening.between.join(f'"{piece}"' for piece in opening.pieces)


def _onwards(rng: random.Random, opening: _Opening) -> Pair:
    at = rng.randint(1, len(opening.pieces) // 3)
    ask = rng.choice(("Only from {} on.", "Start at {} this time.", "Repeat that, beginning with {}."))
    return ask.format(opening.keys[at]), opening.between.join(opening.pieces[at:])


def _until(rng: random.Random, opening: _Opening) -> Pair:
    at = len(opening.pieces) - 1 - rng.randint(1, len(opening.pieces) // 3)
    ask = rng.choice(("Only up to {}.", "Stop at {} this time.", "Repeat that, ending with {}."))
    return ask.format(opening.keys[at]), opening.between.join(opening.pieces[: at + 1])


def _joined(rng: random.Random, opening: _Opening) -> Pair:
    word = rng.choice(("and", "or", "then"))
    return f"Now put {word} between them.", f" {word} ".join(opening.pieces)


def _twice(rng: random.Random, opening: _Opening) -> Pair:
    ask = rng.choice(("Write each of them twice.", "Now everything twice, please."))
    return ask, opening.between.join(f"{piece} {piece}" for piece in opening.pieces)


def _only(rng: random.Random, opening: _Opening) -> Pair:
    asked = rng.sample(range(len(opening.keys)), min(3, len(opening.keys) - 1))
    ask = rng.choice(("Only those about {}, please.", "What did you write about {}?"))
    about = " and ".join(opening.keys[i] for i in asked)
    return ask.format(about), opening.between.join(opening.pieces[i] for i in asked)


def _renamed(rng: random.Random, opening: _Opening) -> Pair:
    at = rng.randrange(len(opening.keys))
    name = rng.choice([name for name in NAMES if name not in opening.keys and name not in opening.spare])
    ask = rng.choice(("Call {} {} instead.", "Now change the name {} to {}."))
    pieces = [piece.replace(opening.keys[at], name) for piece in opening.pieces]
    return ask.format(opening.keys[at], name), replace(opening, pieces=tuple(pieces)).output


def _closed(ask: str, *parts: str) -> str:
    """A message that ends in a piece, with a full stop where the piece has no mark of its own."""
    text = ask.format(*parts)
    return text if text[-1] in ".?" else f"{text}."


OPENINGS: tuple[Callable[[random.Random], _Opening], ...] = (
    *(_copied, _commas, _lines, _capitalised, _backwards, _members, _opposites),
    *(_held, _pasts, _questions),
)
FOLLOW_UPS: tuple[Callable[[random.Random, _Opening], Pair], ...] = (
    *(_reversed, _capitals, _first, _last, _count, _numbered),
    *(_dashes, _added, _preceded, _without, _replaced, _quoted),
)
WORD_FOLLOW_UPS = (_onwards, _until, _joined, _twice)  # too long or of too little sense for sentences
CLAUSE_FOLLOW_UPS = (_only, _renamed)
