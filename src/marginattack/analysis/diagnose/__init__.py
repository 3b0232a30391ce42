"""Diagnosis: whether a margin may be believed, before a run, after it, and by an attack without gradients."""

from marginattack.analysis.diagnose.after import MAY_FAIL as MAY_FAIL
from marginattack.analysis.diagnose.after import afterwards as afterwards
from marginattack.analysis.diagnose.before import preflight as preflight
from marginattack.analysis.diagnose.blackbox import probe as probe
from marginattack.analysis.diagnose.causes import Finding as Finding
from marginattack.analysis.diagnose.causes import found as found
