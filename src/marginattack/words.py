"""What an error says, for messages of one line."""


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks, and not endless."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def told(error: BaseException) -> str:
    """The kind of an error and what it says, in one line."""
    return f"{type(error).__name__}: {one_line(error)}" if str(error).strip() else type(error).__name__
