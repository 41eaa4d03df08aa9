"""The verdict of a diagnosis: which places are wrong, what explains each, and the fewest bugs that explain all."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from karat.check.diagnosis.assumed import Assumed
from karat.check.mistakes.catalogue import Variant
from karat.check.replay.finding import Finding
from karat.check.replay.pattern import Pattern


@dataclass(frozen=True, slots=True)
class BugExplanation:
    """One or two mistakes that give the recorded result; ratio: the error that is left, in multiples of the floor."""

    variants: tuple[Variant, ...]
    ratio: float
    error: float

    @property
    def bugs(self) -> frozenset[str]:
        return frozenset(variant.bug for variant in self.variants)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes in which the mistakes are made."""
        return tuple(dict.fromkeys(name for variant in self.variants for name in variant.edits))

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(variant.key for variant in self.variants))


@dataclass(slots=True)
class Wrong:
    """A recorded result that its recorded inputs do not give, and its explanations, the best first.

    empty      what the result is, if it holds too little for a name ("all zero"; see karat.check.replay.degenerate)
    follows    it is computed through wrong results, and is as wrong as they make it, or this cannot be decided
    hint       what a larger trace would decide
    not_tried  the mistakes that were not tried because the time was up
    pattern    what is wrong in it, of a result that nothing explains
    """

    finding: Finding
    role: str
    layer: int | None
    explanations: list[BugExplanation] = field(default_factory=list)
    empty: str | None = None
    follows: bool = False
    hint: str | None = None
    not_tried: str = ""
    pattern: Pattern | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """One bug, or a class of bugs that this trace cannot tell apart, and all places where it shows.

    classes    the sets of bug ids, one for each explanation
    details    a line for each explanation
    places     names of results, in order
    first      the evidence at the first place
    elsewhere  details that hold only at other places
    hidden     results in which the bug cannot be seen, as it moves them by less than rounding does
    """

    classes: tuple[frozenset[str], ...]
    details: tuple[str, ...]
    places: tuple[str, ...]
    first: Wrong
    elsewhere: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def bugs(self) -> frozenset[str]:
        """All ids in the class."""
        return frozenset().union(*self.classes)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that is said of a trace.

    findings        every recorded result against its recorded inputs
    named           the bugs that explain wrong results
    unexplained     wrong results that no known mistake gives
    beyond_judging  results with NaN or infinity among their inputs
    missing         results that are not in the trace
    follows         results that are wrong because results before them are, of which only a part is recorded
    resolution      how exactly a bug can be located; "" for a complete trace
    """

    findings: Sequence[Finding]
    named: Sequence[Named]
    unexplained: Sequence[Wrong]
    beyond_judging: Sequence[str]
    missing: Sequence[str]
    follows: Sequence[str] = ()
    resolution: str = ""
    assumed: Assumed | None = None

    @property
    def not_finite(self) -> list[Finding]:
        """Results with NaN or infinity where the model's own weights give the same from the recorded inputs."""
        return [finding for finding in self.findings if finding.odd and not finding.is_wrong]

    @property
    def is_healthy(self) -> bool:
        return not (self.named or self.unexplained or self.beyond_judging or self.not_finite)

    @property
    def is_undecided(self) -> bool:
        """Whether the run is healthy only if its engine rounds activations, which the trace does not state."""
        return self.is_healthy and self.assumed is not None and self.assumed.activations is not None


def diagnosis_of(
    findings: Sequence[Finding], wrong: Sequence[Wrong], beyond_judging: Sequence[str], missing: Sequence[str]
) -> Diagnosis:
    """The diagnosis of all parts of a run; a bug that shows in several parts is named once."""
    unexplained = [item for item in wrong if not item.explanations and not item.follows]
    follows = [item.finding.name for item in wrong if item.follows]
    return Diagnosis(findings, _merge(wrong), unexplained, beyond_judging, missing, follows)


def _merge(wrong: Sequence[Wrong]) -> list[Named]:
    """The fewest bugs that explain all places. Places with a common explanation belong to one bug.

    Two mistakes may give the same numbers at one place of a layer and different ones at the next. So an explanation
    that covers more places wins.
    """
    explained = [item for item in wrong if item.explanations]
    rest = list(explained)
    named = []
    while rest:
        by_bug: dict[frozenset[str], list[Wrong]] = {}
        for item in rest:
            for key in {e.bugs for e in item.explanations}:
                by_bug.setdefault(key, []).append(item)
        most = max(len(items) for items in by_bug.values())
        best_first = min((items[0] for items in by_bug.values() if len(items) == most), key=explained.index)
        keys = [key for key, items in by_bug.items() if len(items) == most and items[0] is best_first]
        covered = by_bug[keys[0]]
        keys = [key for key in keys if by_bug[key] == covered]
        first = covered[0]
        in_class = [e for e in first.explanations if e.bugs in keys]
        details = tuple(dict.fromkeys(map(_detail, in_class)))
        others = [
            [_detail(e) for e in item.explanations if e.bugs in keys]
            for item in covered[1:]
            if not any(v.fitted for e in item.explanations for v in e.variants)
        ]
        named.append(
            Named(
                classes=tuple(dict.fromkeys(e.bugs for e in in_class)),
                details=details,
                elsewhere=tuple(dict.fromkeys(found[0] for found in others if found and not set(found) & set(details))),
                places=tuple(item.finding.name for item in covered),
                first=first,
            )
        )
        rest = [item for item in rest if item not in covered]
    return sorted(named, key=lambda n: explained.index(n.first))


def _detail(explanation: BugExplanation) -> str:
    return "; ".join(f"{v.bug}: {v.text}" for v in explanation.variants)
