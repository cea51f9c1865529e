"""Stories for small children in the manner of TinyStories: a hero's day of friends, things and troubles.

The answer is the next day: the hero meets the same friends with the same things and troubles, but now it is the hero
who helps. Each friend calls the next one, and before every word of the first day that the second one repeats stand two
words that stand together nowhere else, so that a tiny model finds it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ssd_bench.miniature.domains.item import Item

TASK = "tinystories"
EPISODES = (4, 6)  # drawn uniformly at full scale

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
HELPER_LOOKS = ("tall", "big", "wise", "gentle", "friendly", "silly")
THINGS = ("balls", "hats", "boats", "kites", "cars", "drums", "dolls", "boxes", "balloons", "bells", "cups", "baskets")
FRIENDS = ("Owl", "Frog", "Horse", "Cow", "Hen", "Turtle", "Fox", "Bee", "Goat", "Bird")
LAST = "Mom"  # whom the last friend calls


@dataclass(frozen=True)
class Trouble:
    """A mishap of the things and the friend's rescue; the next day's, by the hero; and the call of the next friend.

    Friend and things follow the same two words on both days.
    """

    happens: str
    rescue: str
    again: str
    call: str


TROUBLES = (
    Trouble(
        "wind took the {thing} into a high tree.",
        "Up climbed {Friend} and let the {thing} fall.",
        'wind took the {thing} into a high tree again. Up climbed {Friend}, but the tree was wet. "I can climb too!" '
        "said {Name}. {He} went from branch to branch and let the {thing} fall. You are never too small to help.",
        "From the tree top {Friend} called {next}.",
    ),
    Trouble(
        "deep into a hole fell the {thing}.",
        "A stick helped {Friend} to dig out the {thing}.",
        'deep into a hole fell the {thing} again. A stick helped {Friend} to dig, but it broke. "I have a long one," '
        "said {Name}. {He} knew how to dig out the {thing}. They put a rock on it, so that no one falls.",
        "Beside the stick {Friend} called {next}.",
    ),
    Trouble(
        "splash, away swam the {thing}!",
        "The swimmer {Friend} came back with the {thing}.",
        'splash, away swam the {thing} again! The swimmer {Friend} was still cold and tired. "I can swim too!" said '
        "{Name}. {He} jumped in and came back with the {thing}. They sat in the sun to get dry.",
        "From the water side {Friend} called {next}.",
    ),
    Trouble(
        "bump, one heavy rock hid the {thing}!",
        "Strong pushes of {Friend} rolled it off the {thing}.",
        'bump, one heavy rock hid the {thing} again! Strong pushes of {Friend} did not move it. "I push too!" said '
        "{Name}. They pushed until it was off the {thing}. Two friends can do more than one.",
        "Behind some stones {Friend} called {next}.",
    ),
    Trouble(
        "lost among long grass were the {thing}.",
        "Only the eyes of {Friend} could see the {thing}.",
        "lost among long grass were the {thing} again. Only the eyes of {Friend} were too tired now. {Name} looked and "
        'looked. "I can see the {thing}!" said {Name}. If you look, you will find.',
        "Amid some weeds {Friend} called {next}.",
    ),
    Trouble(
        "crack, in two broke the {thing}!",
        "Glue from {Friend} fixed the {thing}.",
        'crack, in two broke the {thing} again! Glue from {Friend} was all gone. "We have some at home," said {Name}. '
        "{He} ran there and fixed the {thing}. They were as good as new.",
        "With dry glue {Friend} called {next}.",
    ),
    Trouble(
        "caw, a mean crow stole the {thing}!",
        "Kind words of {Friend} made it drop the {thing}.",
        'caw, a mean crow stole the {thing} again! Kind words of {Friend} did not help. "Will you play with us?" said '
        "{Name}. It came down to drop the {thing}. Even a mean crow can be nice.",
        "Under the nest {Friend} called {next}.",
    ),
    Trouble(
        "mud was all over the {thing}.",
        "Soap from {Friend} washed the {thing} clean.",
        'mud was all over the {thing} again. Soap from {Friend} was not enough. "I will get some water," said {Name}. '
        "{He} came back and washed the {thing} clean. Do not be sad about a little mud.",
        "With clean hands {Friend} called {next}.",
    ),
    Trouble(
        "high above a wall flew the {thing}!",
        "A small door let {Friend} fetch the {thing}.",
        'high above a wall flew the {thing} again! A small door let {Friend} look, but it was too fat. "I am little," '
        "said {Name}. {He} went in to fetch the {thing}. They left the door open for all.",
        "Next to the wall {Friend} called {next}.",
    ),
    Trouble(
        "snore, a fat pig slept upon the {thing}!",
        "Songs by {Friend} woke it and freed the {thing}.",
        'snore, a fat pig slept upon the {thing} again! Songs by {Friend} did not wake it. "I can sing too!" said '
        "{Name}. The pig laughed, got up and freed the {thing}. Then they all sang the song.",
        "With loud laughs {Friend} called {next}.",
    ),
)
# Words that tell what comes after them, or are told by others.
_NAMES = {name for name, *_ in HEROES}
_BEGUN = (trouble.happens.split()[0].strip(",") for trouble in TROUBLES)
POINTERS = (*THINGS, *FRIENDS, *COLORS, *HELPER_LOOKS, *sorted(_NAMES), LAST, *_BEGUN, "fixed", "washed", "freed")
STARTS = ("Once upon a time,", "One day,", "Long ago,", "One summer,")

# The phrases of the first story; an episode has one of each, and no two episodes share one.
SORROWS = (
    "{Name} was very sad.",
    "{Name} began to cry.",
    "{Name} asked for help.",
    '"Oh no!" said {Name}.',
    "{Name} did not know what to do.",
    '"What can we do?" {Name} said.',
)
THANKS = (
    "{Name} was glad again.",
    '"Thank you, my friend!" said {Name}.',
    "{Name} gave a big hug.",
    "They became good friends.",
    "They played together for a while.",
    "They shared a sweet cake.",
)
LESSONS = (
    "{Name} knew that it is good to ask for help.",
    "{Name} said that {he} would take care of {his} things.",
    "{Name} knew that friends help each other.",
    "{Name} told her that sharing is fun.",
    "{Name} wanted to be kind to everyone.",
)

# How both stories begin, and how an episode does; how the second story ends.
HERO = "there was a {size} {kind} named {Name}. {Name} liked to play {where}. In the morning, {Name} met {Friend}."
LOOKS = "{Friend} looked {look} with {color} {thing} when"
SECOND_START = "It was the next day, and again "
SECOND_END = (
    'At bedtime, Mom asked, "Did you have fun?" "Yes," said {Name}, "it is good to get help, and it is fun to help."'
)

Episode = tuple[dict[str, str], Trouble]  # with what fills the phrases


def make(rng: random.Random, scale: float = 1.0) -> Item:
    """Make a hero's day and the next day, when the hero helps the helpers; `scale` in (0, 1] shortens both."""
    count = math.ceil(scale * rng.randint(*EPISODES))
    name, kind, he, his = rng.choice(HEROES)
    hero = {"Name": name, "kind": kind, "he": he, "He": he.capitalize(), "his": his}
    hero |= {"size": rng.choice(SIZES), "where": rng.choice(PLACES)}
    colors, things, looks, friends = (rng.sample(pool, count) for pool in (COLORS, THINGS, HELPER_LOOKS, FRIENDS))
    names = ("color", "thing", "look", "Friend", "next")
    slots = [hero | dict(zip(names, values)) for values in zip(colors, things, looks, friends, [*friends[1:], LAST])]
    episodes = list(zip(slots, rng.sample(TROUBLES, count)))
    return Item({"text": _first(rng, episodes)}, _second(episodes))


def _first(rng: random.Random, episodes: list[Episode]) -> str:
    hero = episodes[0][0]
    parts = [f"{rng.choice(STARTS)} {HERO}".format_map(hero)]
    phrases = zip(*(rng.sample(pool, len(episodes)) for pool in (SORROWS, THANKS)))
    for (slots, trouble), (sorrow, thanks) in zip(episodes, phrases):
        sentences = (LOOKS, trouble.happens, sorrow, trouble.rescue, thanks, trouble.call)
        parts.append(" ".join(sentences).format_map(slots))
    return " ".join([*parts, f"At bedtime, {rng.choice(LESSONS)}".format_map(hero)])


def _second(episodes: list[Episode]) -> str:
    hero = episodes[0][0]
    next_day = [f"{LOOKS} {trouble.again} {trouble.call}".format_map(slots) for slots, trouble in episodes]
    return " ".join([f"{SECOND_START}{HERO}".format_map(hero), *next_day, SECOND_END.format_map(hero)])
