"""Diagnosis: are margins reliable? Checks before a run, after a run, and an attack without gradients."""

from marginattack.analysis.diagnose.after_run import MAY_FAIL as MAY_FAIL
from marginattack.analysis.diagnose.after_run import ResultChecks as ResultChecks
from marginattack.analysis.diagnose.after_run import check_results as check_results
from marginattack.analysis.diagnose.after_run import may_fail as may_fail
from marginattack.analysis.diagnose.before_run import Examination as Examination
from marginattack.analysis.diagnose.before_run import examine as examine
from marginattack.analysis.diagnose.before_run import preflight as preflight
from marginattack.analysis.diagnose.black_box import probe as probe
from marginattack.analysis.diagnose.findings import Finding as Finding
from marginattack.analysis.diagnose.findings import make_finding as make_finding
