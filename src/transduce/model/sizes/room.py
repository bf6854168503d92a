"""Room for the keys and values that decoding keeps between steps."""

STEPS_AHEAD = 16
"""That there is room for, whenever room is made for keys and values."""
FIRST_SLOTS = 2_048
"""Of all sentences together, that there is room for at first: where they are few, their
translations mostly end before more is needed."""
FIRST_ROOM = 128
"""Slots of a sentence at most, at first: where they are zeros, these are to cost little
beside a step."""
WIDE_ROOM = 64
"""Slots that are room enough for wide groups: where none is taken again, these leave so
much behind that it is better to look for it often."""


def first_room(sentences: int) -> int:
    """Slots of each of so many sentences, before its first step."""
    shared = FIRST_SLOTS // max(sentences, 1)
    return max(STEPS_AHEAD, min(shared, FIRST_ROOM))


def room_ahead(num_slots: int, group_size: int) -> int:
    """Slots to have room for, if so many are in use, or positions read."""
    ahead = max(min(STEPS_AHEAD * group_size, WIDE_ROOM), group_size)
    return max(2 * num_slots, num_slots + ahead)
