"""Short instructions with an input, in the format of Alpaca; the output follows from the two by a fixed rule.

Sums and look-ups are most of them: bare of any story they teach in few tokens what problems, reports and queries need.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ssd_bench.miniature.domains.arithmetic import LARGEST, SMALL, calculation
from ssd_bench.miniature.domains.item import Item

TASK = "alpaca"

CATEGORIES = {
    "animals": ("tiger", "zebra", "wolf", "camel", "eagle", "shark", "monkey", "lizard", "whale", "panda"),
    "fruits": ("banana", "cherry", "grape", "lemon", "mango", "orange", "peach", "pear", "plum", "melon"),
    "tools": ("hammer", "saw", "drill", "wrench", "shovel", "axe", "pliers", "ladder", "brush", "file"),
    "countries": ("Brazil", "Canada", "Egypt", "France", "India", "Japan", "Kenya", "Norway", "Peru", "Spain"),
    "instruments": ("piano", "guitar", "violin", "flute", "trumpet", "harp", "cello", "organ", "banjo", "tuba"),
}
WORDS = tuple(word for name, words in CATEGORIES.items() if name != "countries" for word in words)
OPPOSITES = (
    *(("hot", "cold"), ("fast", "slow"), ("early", "late"), ("rich", "poor"), ("hard", "soft"), ("wet", "dry")),
    *(("loud", "quiet"), ("strong", "weak"), ("full", "empty"), ("light", "dark"), ("high", "low"), ("open", "closed")),
)
NAMES = ("Alice", "Bruno", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Irene", "Jonas", "Karen", "Louis")
TOWNS = ("London", "Paris", "Rome", "Madrid", "Vienna", "Berlin", "Dublin", "Lisbon", "Athens", "Oslo")
# Third person, base form and past tense.
ACTIONS = (
    *(("likes", "like", "liked"), ("finds", "find", "found"), ("loses", "lose", "lost")),
    *(("needs", "need", "needed"), ("wants", "want", "wanted"), ("brings", "bring", "brought")),
    *(("sells", "sell", "sold"), ("takes", "take", "took"), ("makes", "make", "made"), ("sees", "see", "saw")),
)
OBJECTS = ("toys", "photos", "letters", "clothes", "tickets", "coins", "posters", "flags", "candles", "puzzles")
MOMENTS = ("at home", "at work", "in the office", "in the evening", "after school", "on weekends", "with friends")
PRODUCTS = ("phone", "camera", "laptop", "movie", "hotel", "restaurant", "printer", "service", "website", "bus tour")
GOOD = ("great", "excellent", "wonderful", "amazing", "perfect")
BAD = ("terrible", "awful", "broken", "boring", "useless")
STAFF = ("support team", "staff", "price", "quality", "design", "delivery")
TOPICS = ("the meeting", "the invoice", "the project", "the contract", "the schedule", "the new order", "the interview")

# An instruction, its input and the output.
Triple = tuple[str, str, str]


def make(rng: random.Random) -> Item:
    """One of the kinds of instruction, as often as it stands in `KINDS`."""
    instruction, given, output = rng.choice(KINDS)(rng)
    return Item({"instruction": instruction, "input": given, "output": output}, output)


def _category(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """A category, four of its words, and the words of all others."""
    name = rng.choice(tuple(CATEGORIES))
    others = [word for other, words in CATEGORIES.items() if other != name for word in words]
    return name, rng.sample(CATEGORIES[name], 4), others


def _statement(rng: random.Random) -> tuple[str, tuple[str, str, str], str]:
    """Subject, verb and the rest of a simple sentence."""
    who = " and ".join(rng.sample(NAMES, 2)) if rng.random() < 0.5 else rng.choice(NAMES)
    third, base, past = rng.choice(ACTIONS)
    rest = f"{rng.choice(OBJECTS)} {rng.choice(MOMENTS)} in {rng.choice(TOWNS)}"
    return who, (base if " and " in who else third, base, past), rest


def _three(rng: random.Random) -> Triple:
    name, members, others = _category(rng)
    members = members[:3]
    mixed = members + rng.sample(others, 3)
    rng.shuffle(mixed)
    ask = rng.choice(("List the three {} in the input.", "Find three {} among these words.", "Name the three {}."))
    found = [word for word in mixed if word in members]
    return ask.format(name), ", ".join(mixed), "\n".join(f"{i}. {word}" for i, word in enumerate(found, start=1))


def _sort(rng: random.Random) -> Triple:
    words = rng.sample(WORDS, rng.randint(4, 5))
    ask = rng.choice(("Sort the words in alphabetical order.", "Put these words in alphabetical order."))
    return ask, ", ".join(words), ", ".join(sorted(words))


def _reverse(rng: random.Random) -> Triple:
    words = rng.sample(WORDS, rng.randint(4, 6))
    ask = rng.choice(("Reverse the list.", "Write the list backwards.", "Give the items in reverse order."))
    return ask, ", ".join(words), ", ".join(reversed(words))


def _odd(rng: random.Random) -> Triple:
    name, members, others = _category(rng)
    odd = rng.choice(others)
    words = [*members, odd]
    rng.shuffle(words)
    ask = rng.choice(("Pick the odd one out.", "Which word does not belong?", "Find the word that does not fit."))
    return ask, ", ".join(words), f"The odd one out is {odd}, because the others are {name}."


def question(rng: random.Random) -> Triple:
    """A statement to turn into a question."""
    who, (verb, base, _), rest = _statement(rng)
    ask = rng.choice(("Make the sentence a question.", "Turn this statement into a question."))
    return ask, f"{who} {verb} {rest}.", f"{'Do' if verb == base else 'Does'} {who} {base} {rest}?"


def past(rng: random.Random) -> Triple:
    """A sentence to put into the past tense."""
    who, (verb, _, past), rest = _statement(rng)
    ask = rng.choice(("Change the sentence to past tense.", "Rewrite in the past tense.", "Use the past tense."))
    return ask, f"{who} {verb} {rest}.", f"{who} {past} {rest}."


def _opposite(rng: random.Random) -> Triple:
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in rng.sample(OPPOSITES, rng.randint(4, 5))]
    ask = rng.choice(("Give the opposite of each word.", "Write the antonyms.", "Replace every word by its opposite."))
    return ask, ", ".join(pair[0] for pair in pairs), ", ".join(pair[1] for pair in pairs)


def _count(rng: random.Random) -> Triple:
    words = rng.sample(WORDS, rng.randint(3, 9))
    ask = rng.choice(("Count the words.", "How many words are there?", "Tell me the number of words."))
    return ask, " ".join(words), f"There are {len(words)} words, from {words[0]} to {words[-1]}."


def sentiment(rng: random.Random) -> Triple:
    """A review, good or bad."""
    good = rng.random() < 0.5
    product, (first, second) = rng.choice(PRODUCTS), rng.sample(GOOD if good else BAD, 2)
    part, town, name = rng.choice(STAFF), rng.choice(TOWNS), rng.choice(NAMES)
    text = f"The {product} in {town} was {first} and the {part} was {second}, says {name}."
    ask = rng.choice(("Classify the sentiment.", "Is this review positive or negative?", "Label the review."))
    return ask, text, f"The review of the {product} is {'positive' if good else 'negative'}."


def extract(rng: random.Random) -> Triple:
    """A text in which a name, a city or a number is to be found."""
    facts = {"name": rng.choice(NAMES), "city": rng.choice(TOWNS), "number": str(rng.randint(10, 99))}
    text = rng.choice(
        (
            "{name} moved to {city} with {number} boxes of {thing}.",
            "In {city}, {name} sold {number} packs of {thing}.",
            "We sent {number} bags of {thing} to {name} in {city}.",
        )
    )
    key = rng.choice(tuple(facts))
    ask = rng.choice(("Extract the {} from the text.", "Find the {} in the sentence.", "What is the {} in this text?"))
    given = text.format(**facts, thing=rng.choice(OBJECTS))
    return ask.format(key), given, f"The {key} is {facts[key]}."


def _email(rng: random.Random) -> Triple:
    sender, receiver = rng.sample(NAMES, 2)
    topic, town = rng.choice(TOPICS), rng.choice(TOWNS)
    ask = rng.choice(("Write a polite email to {} about {}.", "Write two polite sentences to {} about {}."))
    body = f"I am writing to you about {topic} in {town}. Could you please send me your answer by tomorrow?"
    text = f"Dear {receiver},\n{body}\nKind regards,\n{sender}"
    return ask.format(receiver, topic), f"Sender: {sender}. Place: {town}.", text


def _capitals(rng: random.Random) -> Triple:
    words = rng.sample(WORDS, rng.randint(4, 6))
    ask = rng.choice(("Capitalise each word.", "Start every word with a capital letter."))
    return ask, " ".join(words), " ".join(word.capitalize() for word in words)


def _join(rng: random.Random) -> Triple:
    words = rng.sample(WORDS, rng.randint(4, 6))
    ask = rng.choice(("Join the words with commas.", "Put commas between the words.", "Make a list with commas."))
    return ask, " ".join(words), ", ".join(words[:-1]) + f" and {words[-1]}"


def _sums(rng: random.Random) -> Triple:
    solved = [calculation(rng) for _ in range(rng.randint(6, 12))]
    ask = rng.choice(("Work out each sum.", "Solve these.", "Write each sum with its result."))
    return ask, ", ".join(sum_.partition("=")[0] for sum_ in solved), ", ".join(solved)


def count_on(rng: random.Random) -> Triple:
    """Numbers to count, up or down."""
    pace = rng.randint(2, SMALL)
    numbers = list(range(rng.randint(0, pace), LARGEST + 1, pace))
    first = rng.randrange(max(1, len(numbers) - 7))
    numbers = numbers[first : first + 14]
    way = rng.choice(("up", "down"))
    if way == "down":
        numbers.reverse()
    ask = rng.choice(("Count {}.", "Go {} in steps."))
    given = f"{len(numbers)} numbers from {numbers[0]} by {pace}"
    return ask.format(way), given, " ".join(map(str, numbers))


def _repeat(rng: random.Random) -> Triple:
    words = rng.sample(WORDS + NAMES + TOWNS + OBJECTS, rng.randint(6, 14))
    ask = rng.choice(("Repeat the words.", "Say this again.", "Copy the list."))
    return ask, " ".join(words), " ".join(words)


def _look_up(rng: random.Random) -> Triple:
    names, n = rng.sample(NAMES, 5), 3
    held = {name: f"{rng.randint(2, 99)} {rng.choice(OBJECTS)}" for name in names}
    asked = rng.sample(names, n)
    ask = rng.choice(("What have {}?", "Look up {}."))
    given = ", ".join(f"{name} has {thing}" for name, thing in held.items())
    return ask.format(" and ".join(asked)), given, ", ".join(f"{name} has {held[name]}" for name in asked)


KINDS: tuple[Callable[[random.Random], Triple], ...] = (
    *(_three, _sort, _reverse, _odd, question, past, _opposite),
    *(_count, sentiment, extract, _email, _capitals, _join),
    *(_sums, count_on) * 6,
    *(_repeat, _look_up) * 2,
)
