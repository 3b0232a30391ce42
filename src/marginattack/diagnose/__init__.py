"""Diagnosis: whether a margin may be believed, before a run, after it, and by an attack without gradients."""

from marginattack.diagnose.after import MAY_FAIL as MAY_FAIL
from marginattack.diagnose.after import afterwards as afterwards
from marginattack.diagnose.before import preflight as preflight
from marginattack.diagnose.blackbox import probe as probe
from marginattack.diagnose.causes import Finding as Finding
from marginattack.diagnose.causes import found as found
