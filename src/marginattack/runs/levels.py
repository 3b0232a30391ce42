"""Distances that remember how the user wrote them."""

from marginattack.runs.settings import as_number


class Level(float):
    """A distance ε with its text, so that 8/255 is printed as 8/255."""

    text: str

    def __new__(cls, value: float, text: str) -> "Level":
        """Make a number that is written as ``text``."""
        level = super().__new__(cls, value)
        level.text = text
        return level

    def divided_by(self, scale: float) -> "Level":
        """Return the same distance in a larger unit, with the same text."""
        return Level(self / scale, self.text)


def as_level(text: str) -> Level:
    """Parse a distance, which may be a fraction such as 8/255."""
    return Level(as_number(text), text.strip())
