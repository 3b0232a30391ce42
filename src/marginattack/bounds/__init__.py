"""The other side of the margin: what is known or estimated about how near the boundary can be."""

from marginattack.bounds.clever import Clever as Clever
from marginattack.bounds.clever import clever as clever
