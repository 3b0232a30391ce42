"""python -m marginattack"""

from marginattack.cli import app

app()
