"""What tests compare of a result."""


def tokens(result):
    """Generated token ids of each sequence."""
    return [sequence.token_ids for sequence in result.sequences]
