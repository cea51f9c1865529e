"""Stories for small children in the manner of TinyStories: a hero, a thing, a trouble, a helper and a lesson.

The answer is a second story with the hero and the place of the first: a model can copy those, and the rest is free.
"""

from __future__ import annotations

import random

from ssd_bench.miniature.domains.item import Item

TASK = "tinystories"

# Name, kind, and the two pronouns of it.
HEROES = tuple(
    (name, kind, *pronouns)
    for names, pronouns in (
        (("Tim", "Ben", "Max", "Leo", "Sam", "Bob"), ("he", "his")),
        (("Lily", "Mia", "Sue", "Amy", "Zoe", "Daisy"), ("she", "her")),
    )
    for name in names
    for kind in ("bunny", "bear", "cat", "dog", "duck", "mouse", "boy" if pronouns[0] == "he" else "girl")
)
SIZES = ("little", "happy", "brave", "shy", "funny", "kind")
PLACES = (
    *("in the park", "in the forest", "by the pond", "on the farm", "in the garden", "by the sea"),
    *("on the hill", "in the yard", "by the river", "in the meadow"),
)
COLORS = ("red", "blue", "green", "yellow", "pink", "shiny", "tiny", "soft")
THINGS = ("ball", "hat", "boat", "kite", "toy car", "drum", "doll", "box", "balloon", "bell", "cookie", "flower")
HELPERS = ("owl", "frog", "horse", "cow", "squirrel", "turtle", "fox", "bee", "goat", "bird")
HELPER_LOOKS = ("tall", "big", "wise", "gentle", "friendly", "silly")

# What happens to the thing, and how the helper gets it back.
TROUBLES = (
    ("The wind blew the {thing} up into a tall tree.", "The {helper} climbed up and got the {thing} down."),
    ("The {thing} fell into a deep hole.", "The {helper} dug in the mud and pulled the {thing} out."),
    ("The {thing} went away in the water.", "The {helper} jumped in and swam to the {thing}."),
    ("The {thing} was stuck under a big rock.", "The {helper} pushed the rock very hard and it moved."),
    ("Then the {thing} was lost in the long grass.", "The {helper} looked and looked and found the {thing}."),
    ("Oh no, the {thing} broke!", "The {helper} had some glue and fixed the {thing}."),
    ("A mean crow took the {thing} away.", "The {helper} asked the crow to be nice and give it back."),
)
STARTS = ("Once upon a time,", "One day,", "Long ago,", "One sunny morning,")
WAYS = (
    "{He} was walking when {he} saw a {color} {thing}.",
    "{He} found a {color} {thing}.",
    "Mom gave {him} a {color} {thing}.",
)
JOYS = (
    "{Name} was so happy.",
    "It was the best {thing} ever.",
    '"What a nice {thing}!" said {Name}.',
    "{Name} played with the {thing} all day.",
    "{He} ran and jumped with it.",
)
SORROWS = (
    "{Name} was very sad.",
    "{He} began to cry.",
    "{He} tried to get it back, but {he} could not.",
    '"Oh no, my {color} {thing}!" said {Name}.',
    "{Name} did not know what to do.",
)
MEETINGS = (
    'A {look} {helper} came by. "Can I help you?" it asked.',
    'Just then, {Name} met a {look} {helper}. "Do not be sad," it said.',
    '{He} asked a {look} {helper} for help. "Yes, I will help," it said.',
)
THANKS = (
    '"Thank you, {helper}!" said {Name}.',
    "{Name} gave the {helper} a big hug.",
    "{Name} and the {helper} became good friends.",
    "They played with the {color} {thing} together.",
    "They shared a sweet cake.",
)
LESSONS = (
    "{Name} learned that it is good to ask for help.",
    "{Name} learned to take care of {his} things.",
    "{Name} learned that friends help each other.",
    "{Name} learned that sharing is fun.",
    "From that day on, {Name} was kind to everyone.",
)


def make(rng: random.Random) -> Item:
    """A story, and one that differs from it in thing, trouble and helper."""
    name, kind, he, his = rng.choice(HEROES)
    him = "him" if he == "he" else "her"
    hero = {"Name": name, "kind": kind, "he": he, "He": he.capitalize(), "his": his, "him": him}
    hero |= {"size": rng.choice(SIZES), "where": rng.choice(PLACES)}
    choices = zip(rng.sample(THINGS, 2), rng.sample(HELPERS, 2), rng.sample(TROUBLES, 2))
    first, second = (
        _story(rng, hero | {"thing": thing, "helper": helper}, *trouble) for thing, helper, trouble in choices
    )
    return Item({"text": first}, second)


def _story(rng: random.Random, slots: dict[str, str], trouble: str, rescue: str) -> str:
    slots = slots | {"color": rng.choice(COLORS), "look": rng.choice(HELPER_LOOKS)}
    parts = [
        rng.choice(STARTS) + " there was a {size} {kind} named {Name}. {Name} liked to play {where}.",
        rng.choice(WAYS),
        *_some(rng, JOYS, 1, 3),
        trouble,
        *_some(rng, SORROWS, 1, 2),
        rng.choice(MEETINGS),
        rescue,
        *_some(rng, THANKS, 1, 2),
        rng.choice(LESSONS),
    ]
    return " ".join(parts).format_map(slots)


def _some(rng: random.Random, sentences: tuple[str, ...], low: int, high: int) -> list[str]:
    """A few of the sentences in their own order, which always makes sense."""
    chosen = sorted(rng.sample(range(len(sentences)), rng.randint(low, high)))
    return [sentences[i] for i in chosen]
