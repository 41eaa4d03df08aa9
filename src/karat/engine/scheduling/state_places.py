"""state_places: after which tokens of a text its state is kept, for others that begin alike (karat.kv.states).

A snapshot takes as much memory as a running sequence, so there are few of a text: at its end, for its own continuation;
where a conversation will go on otherwise than it does now (Request.cache_point); where it leaves what another text has
computed, as a third one may do so too; and now and then, as a long text may be cut anywhere.
"""

SPACING = 2048  # tokens, or twice or four times as many …
INSIDE = 4  # … so that one text has at most one in so many of all snapshots, beside those at its end


def state_places(
    num_tokens: int, block_size: int, *, start: int, cache_point: int | None, known: int, max_snapshots: int
) -> tuple[int, ...]:
    """The ends of blocks, ascending, where a chunk of a text ends and its state is kept.

    The text has `num_tokens` tokens, of which the last is always computed; it is computed from `start` on. `known` of
    its first tokens are in blocks of other texts. There is room for `max_snapshots` snapshots, at least one.
    """
    spacing = max(1, SPACING // block_size) * block_size
    last = (num_tokens - 1) // block_size * block_size
    while last // spacing > max(1, max_snapshots // INSIDE):
        spacing *= 2
    places = {last, known, *range(spacing, last, spacing)}
    if cache_point is not None:
        places.add(cache_point // block_size * block_size)
    return tuple(sorted(place for place in places if start < place <= last))
