"""How grave each defect of the catalogue is, and the text an expert would cite. Part of the answer keys.

The rule: critical where participants may be harmed, consent or rights are touched, or the inference cannot be saved; major
where the conclusion or the detection of harm could change; minor where only documentation or precision suffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from grader_service.domain.findings import Severity

_C, _M, _N = Severity.CRITICAL, Severity.MAJOR, Severity.MINOR


@dataclass(frozen=True, slots=True)
class DefectGravity:
    """A defect's severity and its source."""

    severity: Severity
    source: str


DEFECT_GRAVITIES: dict[str, DefectGravity] = {
    "CON-01": DefectGravity(_C, "ICH E6(R2) 4.8.8; ICH E6(R3) 2.8.7; 21 CFR 50.27"),
    "CON-02": DefectGravity(_M, "ICH E6(R2) 4.8.3, 4.8.7; 21 CFR 50.20"),
    "CON-03": DefectGravity(_M, "ICH E6(R2) 4.8.2"),
    "CON-04": DefectGravity(_C, "ICH E6(R2) 4.8.4; 21 CFR 50.20"),
    "CON-05": DefectGravity(_M, "ICH E6(R3) 1.2; ICH E6(R2) 3.1.8"),
    "CON-06": DefectGravity(_C, "ICH E6(R2) 4.8.12; 21 CFR 50.55"),
    "CON-07": DefectGravity(_C, "ICH E6(R2) 4.8.8"),
    "ETH-01": DefectGravity(_C, "21 CFR 312.30(b)(2); ICH E6(R2) 4.5.2-4.5.4"),
    "ETH-02": DefectGravity(_M, "ICH E6(R2) 4.5.1"),
    "POP-01": DefectGravity(_C, "ICH E6(R2) 2.2, 6.5; FDA guidance on suicidality 2012"),
    "POP-02": DefectGravity(_M, "ICH E9 4.3"),
    "POP-03": DefectGravity(_N, "ICH E6(R2) 6.5.1-6.5.2"),
    "SAF-01": DefectGravity(_M, "ICH E6(R2) 6.8; investigator's brochure"),
    "SAF-02": DefectGravity(_C, "ICH E6(R2) 6.4.6"),
    "SAF-03": DefectGravity(_M, "ICH E9 4.6; FDA guidance on data monitoring committees 2006; ICH E6(R2) 5.5.2"),
    "SAF-04": DefectGravity(_C, "ICH E6(R3) 2.7.2(b); 21 CFR 312.64(b)"),
    "SAF-05": DefectGravity(_M, "ICH E6(R2) 6.8.4"),
    "SAF-06": DefectGravity(_C, "21 CFR 312.42(b); ICH S9"),
    "SAF-07": DefectGravity(_M, "ICH M3(R2)"),
    "SAF-08": DefectGravity(_M, "ICH M3(R2)"),
    "END-01": DefectGravity(_C, "ICH E9 2.2.2"),
    "END-02": DefectGravity(_M, "ICH E9(R1)"),
    "END-03": DefectGravity(_M, "ICH E8(R1); FDA guidance on clinical outcome assessments"),
    "END-04": DefectGravity(_M, "ICH E9 2.3.1"),
    "DES-01": DefectGravity(_M, "ICH E10; ICH E9 2.3"),
    "DES-02": DefectGravity(_C, "ICH E6(R2) 4.7, 6.4.3"),
    "DES-03": DefectGravity(_M, "ICH E9 2.3.2"),
    "DES-04": DefectGravity(_N, "ICH E9 2.3.2"),
    "STA-01": DefectGravity(_C, "ICH E9 4.5; FDA guidance on adaptive designs 2019"),
    "STA-02": DefectGravity(_N, "ICH E9 4.5"),
    "STA-03": DefectGravity(_M, "ICH E9 5.2.1"),
    "STA-04": DefectGravity(_N, "NRC 2010; EMA 2010; ICH E9(R1)"),
    "STA-05": DefectGravity(_M, "ICH E9 2.2.5, 5.6; FDA guidance on multiple endpoints 2022"),
    "STA-06": DefectGravity(_M, "ICH E9 4.4"),
    "STA-07": DefectGravity(_N, "ICH E9 3.5"),
    "REG-01": DefectGravity(_M, "21 CFR 11; ICH E6(R2) 5.5.3, 5.18.3"),
}
