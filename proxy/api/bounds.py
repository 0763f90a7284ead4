"""What clients choose freely, kept where sums stay numbers, loops end, and names can be remembered."""

from proxy.tokens.shape import BadRequest, Shape

# Each is a running slot, an output, and an abort of its own. OpenAI takes 128, batches of
# evaluation harnesses have a thousand.
MOST_SEQUENCES = 4096
MOST_TOKENS = 2**40  # beyond any context: more of it changes no decision
LONGEST_MODEL = 8192  # characters; hundreds of names are remembered, whoever made them up


def check_sequences(shape: Shape) -> None:
    """Raises BadRequest for more sequences (`n` times the items of a batch) than one request may ask for."""
    if shape.sequences > MOST_SEQUENCES:
        raise BadRequest(f"a request may ask for at most {MOST_SEQUENCES} sequences (n x batch items)", "n")


def check_model(shape: Shape) -> None:
    """Raises BadRequest for a model's name that is too long to be kept, for routing or for its outputs."""
    if len(shape.model) > LONGEST_MODEL:
        raise BadRequest(f"model must not have more than {LONGEST_MODEL} characters", "model")


def bounded(tokens: int) -> int:
    """`tokens`, or the most that makes a difference."""
    return min(tokens, MOST_TOKENS)
