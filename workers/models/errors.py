"""What is wrong with a model that somebody named."""


class UnsupportedModel(ValueError):
    """The model is of a kind this project's own decoder does not compute, or no model; the text says what is known."""
