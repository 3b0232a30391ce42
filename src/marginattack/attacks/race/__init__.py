"""Race, the default attack: phases (the schedule), moves (the equations), scheduling (who shares a query)."""

from marginattack.attacks.race.phases import CURVED as CURVED
from marginattack.attacks.race.phases import NEAR_LINEAR as NEAR_LINEAR
from marginattack.attacks.race.race import Race as Race
