"""Other libraries: their attacks here, ``external_attack("advlib:ddn")``; ours there, one module per library."""

from marginattack.attacks.external import EXTERNAL_ATTACKS as EXTERNAL_ATTACKS
from marginattack.attacks.external import external_attack as external_attack
