"""Stories for small children in the manner of TinyStories: a hero's day of friends, things and troubles.

The answer is the next day: the hero meets the same friends with the same things and troubles, but now it is the hero
who helps. Each friend calls the next one, and before every word of the first day that the second one repeats stand two
words that stand together nowhere else, so that a tiny model finds it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item

EPISODES = (4, 6)  # drawn uniformly at full scale


@dataclass(frozen=True)
class Trouble:
    """A mishap of the things and the friend's rescue; the next day's, by the hero; and the call of the next friend.

    Friend and things follow the same two words on both days.
    """

    happens: str
    rescue: str
    again: str
    call: str


TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
# Name, kind, and the two pronouns of it.
HEROES = [
    (name, kind, group["he"], group["his"])
    for group in TEXTS["heroes"]
    for name in group["names"]
    for kind in group["kinds"]
]
LAST: str = TEXTS["last"]
COLORS, HELPER_LOOKS, THINGS, FRIENDS = (TEXTS[name] for name in ("colors", "helper_looks", "things", "friends"))
TROUBLES = [Trouble(**trouble) for trouble in TEXTS["troubles"]]
# Words that tell what comes after them, or are told by others.
_NAMES = {name for name, *_ in HEROES}
_BEGUN = (trouble.happens.split()[0].strip(",") for trouble in TROUBLES)
POINTERS = (*THINGS, *FRIENDS, *COLORS, *HELPER_LOOKS, *sorted(_NAMES), LAST, *_BEGUN, "fixed", "washed", "freed")


Episode = tuple[dict[str, str], Trouble]  # with what fills the phrases


def make(rng: random.Random, scale: float = 1.0) -> Item:
    """Make a hero's day and the next day, when the hero helps the helpers; `scale` in (0, 1] shortens both."""
    count = math.ceil(scale * rng.randint(*EPISODES))
    name, kind, he, his = rng.choice(HEROES)
    hero = {"Name": name, "kind": kind, "he": he, "He": he.capitalize(), "his": his}
    hero |= {"size": rng.choice(TEXTS["sizes"]), "where": rng.choice(TEXTS["places"])}
    colors, things, looks, friends = (rng.sample(pool, count) for pool in (COLORS, THINGS, HELPER_LOOKS, FRIENDS))
    names = ("color", "thing", "look", "Friend", "next")
    slots = [hero | dict(zip(names, values)) for values in zip(colors, things, looks, friends, [*friends[1:], LAST])]
    episodes = list(zip(slots, rng.sample(TROUBLES, count)))
    return Item({"text": _first(rng, episodes)}, _second(episodes))


def _first(rng: random.Random, episodes: list[Episode]) -> str:
    hero = episodes[0][0]
    parts = [f"{rng.choice(TEXTS['starts'])} {TEXTS['hero']}".format_map(hero)]
    phrases = zip(*(rng.sample(pool, len(episodes)) for pool in (TEXTS["sorrows"], TEXTS["thanks"])))
    for (slots, trouble), (sorrow, thanks) in zip(episodes, phrases):
        sentences = (TEXTS["looks"], trouble.happens, sorrow, trouble.rescue, thanks, trouble.call)
        parts.append(" ".join(sentences).format_map(slots))
    return " ".join([*parts, f"At bedtime, {rng.choice(TEXTS['lessons'])}".format_map(hero)])


def _second(episodes: list[Episode]) -> str:
    hero = episodes[0][0]
    next_day = [f"{TEXTS['looks']} {trouble.again} {trouble.call}".format_map(slots) for slots, trouble in episodes]
    return " ".join(
        [f"{TEXTS['second_start']}{TEXTS['hero']}".format_map(hero), *next_day, TEXTS["second_end"].format_map(hero)]
    )
