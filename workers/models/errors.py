"""What is wrong with a model that somebody named."""


class UnsupportedModel(ValueError):
    """The model is of a kind this project's own decoder does not compute, or no model; the text says what is known."""


class ModelRefused(UnsupportedModel):
    """A folder holds no model that a run may use; `code` is stable, the text says what would be accepted."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
