"""Stories for small children in the manner of TinyStories: a hero's day of things, troubles and helpers.

The answer is the next day: at the same times the hero meets the same helpers with the same things and troubles, but now
it is the hero who helps. It is a function of the first story, told in sentences that belong to the time of day or to
the trouble: a tiny model finds each next piece in the prompt, while what is drawn freely would send it into loops.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ssd_bench.miniature.domains import stories
from ssd_bench.miniature.domains.item import Item
from ssd_bench.miniature.domains.stories import COLORS, HELPER_LOOKS, HEROES, PLACES, SIZES

TASK = "tinystories"
EPISODES = (3, 5)  # drawn uniformly at full scale

THINGS = ("ball", "hat", "boat", "kite", "toy car", "drum", "doll", "box", "balloon", "bell", "cup", "basket")
HELPERS = ("owl", "frog", "horse", "cow", "hen", "turtle", "fox", "bee", "goat", "bird")

# When an episode takes place on both days, and how it begins on the second.
MOMENTS = (
    ("In the morning", "{Name} went to see the {look} {helper}. It had the {color} {thing}."),
    ("At noon", "the {look} {helper} came to play. It sang with the {color} {thing}."),
    ("After lunch", "{Name} ran to the {look} {helper}. It still liked the {color} {thing}."),
    ("Later", "there was the {look} {helper}. It was out with the {color} {thing}."),
    ("In the evening", "{Name} met the {look} {helper}. It ran and jumped with the {color} {thing}."),
)


@dataclass(frozen=True)
class Trouble:
    """What happens to the thing, how the helper gets it back, and all of it on the next day, when the hero helps."""

    happens: str
    rescue: str
    again: str


TROUBLES = (
    Trouble(
        "Then the wind blew the {thing} up into a tall tree.",
        "The {helper} climbed up and got the {thing} down.",
        'But the wind took the {thing} up into the tall tree. The {helper} began to cry. "I can climb too!" '
        'said {Name}. {He} climbed up and let the {thing} fall down. "You are so brave!" the {helper} said. '
        "A tall tree is not so bad with a friend.",
    ),
    Trouble(
        "Oh no, the {thing} fell into a deep hole!",
        "The {helper} dug with a stick and pulled the {thing} out.",
        'It did not see the deep hole, and down fell the {thing}. "I cannot get it," said the {helper}. '
        "{Name} found a long stick and dug the {thing} out. The {helper} gave {him} a big hug. They put a "
        "rock on the hole.",
    ),
    Trouble(
        "The {thing} rolled away and fell into the water.",
        "The {helper} jumped in and swam to the {thing}.",
        'Splash, the {thing} was in the water! "Come back!" called the {helper}. {Name} jumped in and swam '
        "until {he} had the {thing}. The {helper} and {Name} sat in the sun to get dry. It is good to have a "
        "friend who can swim.",
    ),
    Trouble(
        "A big rock came down, and the {thing} was stuck under it.",
        "The {helper} pushed the rock very hard and it moved.",
        'Bump, a big rock fell on the {thing}! The {helper} pulled, but it was stuck. "Let me push," {Name} '
        'said. {He} pushed the rock away with a jump. "We are strong together," said the {helper}. Two '
        "friends can do more than one.",
    ),
    Trouble(
        "Soon the {thing} was lost in the long grass.",
        "The {helper} looked and looked and found the {thing}.",
        "But the grass was long, and the {thing} was lost. The {helper} felt very small. {Name} looked and "
        "looked and saw something {color}. Yes, it was the {thing}! The {helper} shared a sweet cake with "
        "{him}. If you look, you will find.",
    ),
    Trouble(
        "Crack, the {thing} broke in two!",
        "The {helper} had some glue and fixed the {thing}.",
        'Crack, the {thing} was in two parts! "I am so sorry," said the {helper}. {Name} was not mad. {He} '
        "fixed the {thing} with glue. It was as good as new. The {helper} was happy and took good care of it.",
    ),
    Trouble(
        "A mean crow took the {thing} away.",
        "The {helper} asked the crow to be nice and give it back.",
        'Then the mean crow took the {thing}. "That is not nice," said the {helper}. {Name} asked the crow, '
        '"Will you play with us?" The crow gave the {thing} back. Now {Name}, the {helper} and the crow were '
        "friends. Even a mean crow can be nice.",
    ),
    Trouble(
        "The {thing} fell in the mud and was very dirty.",
        "The {helper} washed the {thing} with soap until it was clean.",
        'It fell down, and the {thing} was in the mud. "Now it is dirty," cried the {helper}. {Name} came '
        "with soap and washed the {thing} until it was clean. The {helper} sang a song for {Name}. Do not be "
        "sad about a little mud.",
    ),
    Trouble(
        "The {thing} flew over a high wall.",
        "The {helper} went through a small door in the wall and got the {thing}.",
        "Up, up and over the high wall flew the {thing}. The {helper} was sad. {Name} went through the small "
        'door and got the {thing}. "How wise you are!" said the {helper}. They left the door open for all.',
    ),
    Trouble(
        "A fat pig sat down on the {thing} and fell asleep.",
        "The {helper} woke the pig with a funny song.",
        "Then the fat pig sat on the {thing} and slept. The {helper} was too shy to ask. {Name} sang a funny "
        'song. The pig woke up, laughed and gave them the {thing}. "Thank you, {Name}," said the {helper}. '
        "They all sang the song.",
    ),
)
STARTS = ("Once upon a time,", "One day,", "Long ago,", "One summer,")

# The phrases of the first story; an episode has one of each, and no two episodes share one.
MEETINGS = (
    "{Name} met a {look} {helper}.",
    "{Name} saw a {look} {helper}.",
    "a {look} {helper} came by.",
    "{Name} played with a {look} {helper}.",
    "a {look} {helper} said hello.",
    "{Name} sat next to a {look} {helper}.",
)
WAYS = (
    "{Name} had a {color} {thing}.",
    "{Name} had found a {color} {thing}.",
    "Mom had given {Name} a {color} {thing}.",
    "They played with a {color} {thing}.",
    "{Name} was holding a {color} {thing}.",
    "There was a {color} {thing} for {Name}.",
)
JOYS = (
    "{He} was so happy.",
    "It was the best {thing} ever.",
    '"What a nice {thing}!" said the {helper}.',
    "{He} ran and jumped with it.",
    "They laughed and had a lot of fun.",
    '"Look at my {thing}!" {he} said.',
)
SORROWS = (
    "{Name} was very sad.",
    "{Name} began to cry.",
    "{Name} asked the {helper} for help.",
    '"Oh no, my {color} {thing}!" said {Name}.',
    "{Name} did not know what to do.",
    '"I want my {thing}!" {Name} said.',
)
THANKS = (*stories.THANKS, "{Name} was happy again.")
LESSONS = (
    "{Name} knew that it is good to ask for help.",
    "{Name} said that {he} would take care of {his} things.",
    "{Name} knew that friends help each other.",
    "{Name} told Mom that sharing is fun.",
    "{Name} wanted to be kind to everyone.",
)

# How the second story begins and ends, whatever the number of its episodes.
SECOND_START = (
    "The next day, {Name} the {size} {kind} was {where} again. All {his} toys were with {his} friends. "
    '"What can I do for you today?" {he} asked.'
)
SECOND_END = (
    'At bedtime, Mom asked, "Did you have fun?" "Yes," said {Name}, "it is good to get help, and it is fun to help." '
    "Then {he} fell asleep."
)

Episode = tuple[dict[str, str], Trouble]  # with what fills the phrases


def make(rng: random.Random, scale: float = 1.0) -> Item:
    """A hero's day and the next one, when the hero helps those that have helped; `scale` shortens both."""
    count = math.ceil(scale * rng.randint(*EPISODES))
    name, kind, he, his = rng.choice(HEROES)
    him = "him" if he == "he" else "her"
    hero = {"Name": name, "kind": kind, "he": he, "He": he.capitalize(), "his": his, "him": him}
    hero |= {"size": rng.choice(SIZES), "where": rng.choice(PLACES)}
    choices = zip(*(rng.sample(options, count) for options in (COLORS, THINGS, HELPER_LOOKS, HELPERS)))
    slots = [hero | dict(zip(("color", "thing", "look", "helper"), chosen)) for chosen in choices]
    episodes = list(zip(slots, rng.sample(TROUBLES, count)))
    return Item({"text": _first(rng, hero, episodes)}, _second(hero, episodes))


def _first(rng: random.Random, hero: dict[str, str], episodes: list[Episode]) -> str:
    start = rng.choice(STARTS) + " there was a {size} {kind} named {Name}. {Name} liked to play {where}."
    parts = [start.format_map(hero)]
    phrases = zip(*(rng.sample(p, len(episodes)) for p in (MEETINGS, WAYS, JOYS, SORROWS, THANKS)))
    for (slots, trouble), (moment, _), phrase in zip(episodes, MOMENTS, phrases):
        meeting, way, joy, sorrow, thanks = phrase
        told = (f"{moment}, {meeting}", way, joy, trouble.happens, sorrow, trouble.rescue, thanks)
        parts.append(" ".join(told).format_map(slots))
    return " ".join([*parts, f"At bedtime, {rng.choice(LESSONS)}".format_map(hero)])


def _second(hero: dict[str, str], episodes: list[Episode]) -> str:
    told = [
        f"{moment}, {beginning} {trouble.again}".format_map(slots)
        for (slots, trouble), (moment, beginning) in zip(episodes, MOMENTS)
    ]
    return " ".join([SECOND_START.format_map(hero), *told, SECOND_END.format_map(hero)])
