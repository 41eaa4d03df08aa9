"""The cache groups of a model follow from what its layers keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.kv.groups import (
    CacheGroup,
    Keep,
    Keys,
    SharedKeys,
    State,
    bytes_of_sequence,
    bytes_of_state,
    bytes_per_token,
    groups_of,
    keys_read,
)

LOCAL, FULL = Keys(2, 128, 128, 512), Keys(1, 256, 256, None)
STATE = State(((16, 128, 128), (4, 3)))


def test_layers_alike_are_one_group() -> None:
    assert groups_of([LOCAL] * 3) == (CacheGroup(LOCAL, (0, 1, 2)),)


def test_groups_stand_in_the_order_of_their_first_layers() -> None:
    keeps = [STATE, FULL, LOCAL, None, FULL, SharedKeys(2), LOCAL]
    assert groups_of(keeps) == (CacheGroup(FULL, (1, 4)), CacheGroup(LOCAL, (2, 6)))


def test_a_model_without_keys_has_no_group() -> None:
    assert groups_of([STATE, None]) == ()


@pytest.mark.parametrize("other", [Keys(3, 128, 128, 512), Keys(2, 64, 128, 512), Keys(2, 128, 64, 512), FULL])
def test_every_field_tells_groups_apart(other: Keys) -> None:
    assert len(groups_of([LOCAL, other])) == 2


@pytest.mark.parametrize(
    "keeps", [[SharedKeys(0)], [SharedKeys(1), LOCAL], [STATE, SharedKeys(0)], [LOCAL, SharedKeys(0), SharedKeys(1)]]
)
def test_shared_keys_are_those_of_an_earlier_layer_that_keeps_some(keeps: list[Keep]) -> None:
    with pytest.raises(AssertionError, match="which keeps none before it"):
        groups_of(keeps)


@pytest.mark.parametrize("sizes", [(-1, 1, 1, None), (1, 0, 1, None), (1, 1, 0, None), (1, 1, 1, 0)])
def test_sizes_are_positive(sizes: tuple[int, int, int, int | None]) -> None:
    with pytest.raises(AssertionError):
        Keys(*sizes)


KEYS = st.builds(Keys, st.integers(1, 2), st.just(8), st.just(8), st.sampled_from([None, 4]))


@given(st.lists(st.one_of(KEYS, st.none(), st.just(STATE))))
def test_each_layer_with_keys_is_in_the_group_of_its_keys_alone(keeps: list[Keep]) -> None:
    groups = groups_of(keeps)
    assert len({group.keys for group in groups}) == len(groups)
    assert {layer: group.keys for group in groups for layer in group.layers} == {
        layer: keep for layer, keep in enumerate(keeps) if isinstance(keep, Keys)
    }
    assert sum(len(group.layers) for group in groups) == sum(isinstance(keep, Keys) for keep in keeps)
    assert all(list(group.layers) == sorted(group.layers) for group in groups)
    assert [group.layers[0] for group in groups] == sorted(group.layers[0] for group in groups)


def test_a_layer_reads_its_own_keys_or_those_that_it_shares() -> None:
    assert keys_read([LOCAL, STATE, FULL, None, SharedKeys(0)]) == (LOCAL, None, FULL, None, LOCAL)


def test_bytes_of_a_token_are_those_of_keys_and_values() -> None:
    keeps = [Keys(2, 8, 4, None), STATE, Keys(1, 16, 16, 512), SharedKeys(0), None]
    assert bytes_per_token(keeps, "float16") == (2 * 12 + 32) * 2
    assert bytes_per_token(keeps, "float32") == (2 * 12 + 32) * 4


def test_bytes_of_a_state_are_those_of_its_arrays() -> None:
    keeps = [Keys(2, 8, 4, None), State(((2, 3), (5,))), None, State(((7,),)), SharedKeys(0)]
    assert bytes_of_state(keeps, "float32") == (2 * 3 + 5 + 7) * 4 and bytes_of_state([LOCAL, None], "float32") == 0


def test_a_window_bounds_what_a_sequence_keeps() -> None:
    keeps = [Keys(2, 8, 8, 5), Keys(2, 8, 8, None), SharedKeys(0), None]
    for num_tokens in (3, 5, 9):
        assert bytes_of_sequence(keeps, "float16", num_tokens) == 2 * 2 * 16 * (min(num_tokens, 5) + num_tokens)
