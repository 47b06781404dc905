"""One claim about the kernels, and how two solvers judge it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import cvc5
import z3

from proofs.report import Verdict

TIMEOUT_MS = 60_000  # by the clock: a machine that is busy with other work answers late


@dataclass(frozen=True)
class Obligation:
    """`claim` follows from `given`.

    Attributes:
        name: what is claimed, in a few words, with its register id.
        given: hypotheses; they must be satisfiable, or the claim is vacuous.
        claim: what must hold.
    """

    name: str
    given: Sequence[z3.BoolRef]
    claim: z3.BoolRef


def prove(obligation: Obligation, second_opinion: bool = True) -> Verdict:
    """Demand satisfiable hypotheses, and that both solvers find no counterexample."""
    if _z3(obligation.given)[0] != z3.sat:
        return Verdict(obligation.name, False, "vacuous: the hypotheses cannot hold")
    query = [*obligation.given, z3.Not(obligation.claim)]
    answer, solver = _z3(query)
    if answer != z3.unsat:
        return Verdict(obligation.name, False, f"z3: {answer} {_trace(solver, answer)}")
    if second_opinion and (other := _cvc5(solver.to_smt2())) != "unsat":
        return Verdict(obligation.name, False, f"cvc5: {other}")
    return Verdict(obligation.name, True)


def refute(obligation: Obligation) -> Verdict:
    """Demand a counterexample of both solvers: the claim is wrong on purpose."""
    answer, solver = _z3([*obligation.given, z3.Not(obligation.claim)])
    if answer != z3.sat:
        return Verdict(obligation.name, False, f"no counterexample: {answer}")
    if (other := _cvc5(solver.to_smt2())) != "sat":
        return Verdict(obligation.name, False, f"cvc5: {other}")
    return Verdict(obligation.name, True, _trace(solver, answer))


def run_all(obligations: Sequence[Obligation], judge: Callable[[Obligation], Verdict]) -> Iterator[Verdict]:
    """Judge each; two obligations of one name would hide one another."""
    names = [o.name for o in obligations]
    assert len(set(names)) == len(names), "names must be distinct"
    return map(judge, obligations)


def _z3(query: Sequence[z3.BoolRef]) -> tuple[z3.CheckSatResult, z3.Solver]:
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*query)
    return solver.check(), solver


def _cvc5(smt2: str) -> str:
    terms = cvc5.TermManager()
    solver = cvc5.Solver(terms)
    solver.setOption("tlimit-per", str(TIMEOUT_MS))
    solver.setLogic("ALL")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, smt2, "obligation")
    symbols, answer = parser.getSymbolManager(), ""
    while not (command := parser.nextCommand()).isNull():
        answer += command.invoke(solver, symbols)
    return answer.strip()


def _trace(solver: z3.Solver, answer: z3.CheckSatResult) -> str:
    if answer != z3.sat:
        return ""
    model = solver.model()
    numbers = sorted((f"{name}", f"{model[name]}") for name in model.decls() if name.arity() == 0)
    return ", ".join(f"{name} = {value}" for name, value in numbers)
