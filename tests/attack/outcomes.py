"""What came of each case, written as it comes."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

VERDICTS = ("fine", "refused", "wrong", "hung")


@dataclass(frozen=True)
class Outcome:
    """One case of a kind of attack.

    Attributes:
        kind: The kind.
        case: Its number; with the seed it says everything about the case.
        verdict: "fine", "refused" (with a reason, as it should be), "wrong" or "hung".
        detail: What it was, and what happened.
        seconds: Of the processor, where they were measured.
        sent: The signals that reached a process, of a kill.
    """

    kind: str
    case: int
    verdict: str
    detail: str = ""
    seconds: float = 0.0
    sent: int = 0

    @property
    def is_bad(self) -> bool:
        return self.verdict in ("wrong", "hung")


class Log:
    """Outcomes in a file of JSON lines; cases that are there are not tried again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.outcomes = [Outcome(**json.loads(line)) for line in lines if line.endswith("}")]

    def done(self, kind: str) -> set[int]:
        return {outcome.case for outcome in self.outcomes if outcome.kind == kind}

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

    def table(self, kinds) -> str:
        rows = [("kind", "tried", "refused", "wrong", "hung")]
        for kind in kinds:
            found = Counter(each.verdict for each in self.outcomes if each.kind == kind)
            counts = (sum(found.values()), *(found[verdict] for verdict in VERDICTS[1:]))
            rows.append((kind, *map(str, counts)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
