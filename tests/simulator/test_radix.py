from hypothesis import given
from hypothesis import strategies as st

from proxy.simulator.prompt import SpanPrompt
from proxy.simulator.radix import Node, RadixTree

Tree = RadixTree[SpanPrompt]


def spans(*pairs: tuple[str, int]) -> SpanPrompt:
    return SpanPrompt(pairs)


def cached(tree: Tree, prompt: SpanPrompt) -> int:
    return tree.match(prompt, prompt.tokens)[1]


def test_what_was_inserted_is_found_as_far_as_it_agrees() -> None:
    tree = Tree()
    tree.insert(spans(("s", 100), ("a", 50)), 150)
    assert cached(tree, spans(("s", 100), ("b", 50))) == 100
    assert cached(tree, spans(("s", 100), ("a", 80))) == 150
    assert cached(tree, spans(("x", 100))) == 0


def test_a_shared_prefix_counts_once() -> None:
    tree = Tree()
    assert tree.insert(spans(("s", 100), ("a", 50)), 150)[1] == 150
    assert tree.insert(spans(("s", 100), ("b", 50)), 150)[1] == 50
    assert tree.tokens == 200


def test_a_prompt_can_be_inserted_piece_by_piece() -> None:
    tree, prompt = Tree(), spans(("a", 100))
    for upto in (30, 60, 100):
        tree.insert(prompt, upto)
    assert tree.tokens == 100
    assert cached(tree, prompt) == 100


def test_the_least_recently_used_leaf_goes_first() -> None:
    tree = Tree()
    for key in "abc":
        tree.insert(spans((key, 10)), 10)
    cached(tree, spans(("a", 10)))
    assert tree.evict(1) == 10
    assert [cached(tree, spans((key, 10))) for key in "abc"] == [10, 0, 10]


def test_a_locked_path_survives_eviction_and_its_end_does_not() -> None:
    tree = Tree()
    node, _ = tree.insert(spans(("s", 100)), 100)
    tree.lock(node)
    tree.insert(spans(("s", 100), ("a", 50)), 150)
    assert tree.evictable == 50
    assert tree.evict(1000) == 50
    assert cached(tree, spans(("s", 100), ("a", 50))) == 100


def test_splitting_a_locked_node_keeps_both_parts_locked() -> None:
    tree = Tree()
    node, _ = tree.insert(spans(("s", 100), ("a", 50)), 150)
    tree.lock(node)
    tree.insert(spans(("s", 100), ("b", 50)), 150)
    assert tree.evict(1000) == 50
    tree.unlock(node)
    assert tree.evictable == tree.tokens == 150
    assert tree.evict(1) == 50
    assert tree.evict(1000) == 100


def test_a_parent_goes_after_its_last_child() -> None:
    tree = Tree()
    tree.insert(spans(("s", 100)), 100)
    tree.insert(spans(("s", 100), ("a", 50)), 150)
    assert tree.evict(1) == 50
    assert tree.evict(1) == 100
    assert tree.tokens == tree.evictable == 0


actions = st.lists(
    st.tuples(
        st.sampled_from(["insert", "lock", "unlock", "evict"]),
        st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
        st.integers(1, 60),
    ),
    max_size=60,
)


@given(actions)
def test_the_counts_are_those_of_the_tree_whatever_happens(steps: list[tuple[str, list[str], int]]) -> None:
    tree = Tree()
    held: list[Node[SpanPrompt]] = []
    for action, keys, number in steps:
        prompt = spans(*((f"{at}{key}", 7) for at, key in enumerate(keys)))
        if action == "insert":
            tree.insert(prompt, min(number, prompt.tokens))
        elif action == "lock":
            node, _ = tree.match(prompt, prompt.tokens)
            tree.lock(node)
            held.append(node)
        elif action == "unlock" and held:
            tree.unlock(held.pop(number % len(held)))
        elif action == "evict":
            tree.evict(number)
        tokens, free = _count(tree.root)
        assert (tree.tokens, tree.evictable) == (tokens, free)
    for node in held:
        tree.unlock(node)
    tree.evict(10**9)
    assert (tree.tokens, tree.evictable, tree.root.children) == (0, 0, {})


def _count(node: Node[SpanPrompt]) -> tuple[int, int]:
    tokens = free = 0
    for child in node.children.values():
        below, free_below = _count(child)
        tokens += child.tokens + below
        free += free_below + (child.tokens if not child.locks else 0)
        assert child.locks >= max((grandchild.locks for grandchild in child.children.values()), default=0)
    return tokens, free
