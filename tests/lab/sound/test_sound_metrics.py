import pytest
import torch

from phnn.lab.tasks.scores import Scores
from phnn.lab.tasks.sound.metrics import SoundEventScores

# P, R, F, ER, SED score: the rows of the paper's tables with 4, 8 and 16 channels
PAPER = [
    (0.756, 0.5505, 0.637, 0.450, 0.406),
    (0.724, 0.484, 0.580, 0.516, 0.468),
    (0.767, 0.611, 0.680, 0.389, 0.355),
    (0.765, 0.547, 0.638, 0.453, 0.407),
    (0.788, 0.572, 0.663, 0.428, 0.383),
    (0.754, 0.444, 0.559, 0.556, 0.499),
    (0.767, 0.594, 0.669, 0.406, 0.368),
    (0.729, 0.567, 0.638, 0.433, 0.397),
    (0.747, 0.439, 0.553, 0.560, 0.503),
    (0.655, 0.520, 0.580, 0.480, 0.450),
    (0.653, 0.530, 0.585, 0.470, 0.443),
    (0.702, 0.534, 0.607, 0.466, 0.430),
    (0.734, 0.491, 0.588, 0.509, 0.461),
]

# active tracks (class, track) that are true and predicted; then TP, FP, FN of the authors and plain
ONE_FRAME = [
    ([(0, 0)], [(0, 0)], (1, 0, 0), (1, 0, 0)),
    ([(0, 0)], [(0, 2)], (1, 0, 0), (1, 0, 0)),
    ([], [(0, 0)], (0, 2, 0), (0, 1, 0)),
    ([(0, 0)], [], (0, 0, 2), (0, 0, 1)),
    ([(0, 0), (1, 0), (2, 0)], [], (0, 0, 6), (0, 0, 3)),
    ([(0, 0)], [(1, 0)], (0, 1, 1), (0, 1, 1)),
    ([(0, 0), (0, 1)], [(0, 0)], (2, -1, 0), (1, 0, 1)),
    ([(0, 0), (0, 1), (0, 2)], [(0, 0)], (3, -2, 0), (1, 0, 2)),
    ([(0, 0)], [(0, 0), (0, 1)], (1, 1, 0), (1, 1, 0)),
    ([(0, 0), (1, 0)], [(0, 0)], (1, 0, 1), (1, 0, 1)),
    ([], [], (0, 0, 0), (0, 0, 0)),
]


def frame(active):
    tracks = torch.zeros(1, 1, 3, 3)
    for track in active:
        tracks[0, 0][track] = 1
    return tracks.flatten(2)


def totals(metric):
    states = (metric.true_positives, metric.false_positives, metric.false_negatives)
    return tuple(state.item() for state in states)


def count_by_loops(true, predicted, overlaps, counting):
    """The slow twin: one event after the other."""
    found = wrong = missed = 0
    for t_frame, p_frame in zip(true.flatten(0, 1), predicted.flatten(0, 1), strict=True):
        events = [where // overlaps for where, x in enumerate(t_frame.tolist()) if x > 0.5]
        claims = [where // overlaps for where, x in enumerate(p_frame.tolist()) if x > 0.5]
        if counting == "authors":
            hits = sum(event in claims for event in events)
            found += hits
            wrong += (len(claims) - hits) * (1 if events else 2)
            missed += (len(events) - hits) * (1 if claims else 2)
            continue
        for event in events:
            if event in claims:
                claims.remove(event)
                found += 1
            else:
                missed += 1
        wrong += len(claims)
    return found, wrong, missed


def random_batch(seed, density=0.2, shape=(3, 20), classes=4, overlaps=3):
    generator = torch.Generator().manual_seed(seed)
    true = torch.rand(*shape, classes * overlaps, generator=generator) < density
    return torch.rand(*shape, classes * overlaps, generator=generator), true.float()


class TestCounting:
    @pytest.mark.parametrize(("true", "predicted", "authors", "plain"), ONE_FRAME)
    def test_one_frame(self, true, predicted, authors, plain):
        for counting, expected in (("authors", authors), ("plain", plain)):
            metric = SoundEventScores(counting)
            metric.update(frame(predicted), frame(true))
            assert totals(metric) == expected

    @pytest.mark.parametrize("counting", ["plain", "authors"])
    @pytest.mark.parametrize("overlaps", [1, 3])
    @pytest.mark.parametrize("density", [0.02, 0.3, 0.9])
    def test_against_loops(self, counting, overlaps, density):
        for seed in range(5):
            outputs, targets = random_batch(seed, density, overlaps=overlaps)
            outputs = outputs**2 if seed % 2 else outputs * density
            metric = SoundEventScores(counting, overlaps)
            metric.update(outputs, targets)
            assert totals(metric) == count_by_loops(targets, outputs, overlaps, counting)

    def test_threshold_is_strict(self):
        metric = SoundEventScores(overlaps=1)
        metric.update(torch.tensor([[[0.5, 0.5001]]]), torch.ones(1, 1, 2))
        assert totals(metric) == (1, 0, 1)
        metric = SoundEventScores(overlaps=1, threshold=0.2)
        metric.update(torch.tensor([[[0.2, 0.3]]]), torch.ones(1, 1, 2))
        assert totals(metric) == (1, 0, 1)

    def test_accumulates(self):
        whole, parts = SoundEventScores(), SoundEventScores()
        outputs, targets = random_batch(1, shape=(6, 10))
        whole.update(outputs, targets)
        for one, other in zip(outputs.split(2), targets.split(2), strict=True):
            parts.update(one, other)
        assert totals(parts) == totals(whole)
        assert parts.compute() == whole.compute()
        assert parts.true_positives.dtype == torch.int64


class TestScores:
    def of(self, found, wrong, missed):
        metric = SoundEventScores()
        metric.true_positives += found
        metric.false_positives += wrong
        metric.false_negatives += missed
        metric._update_count = 1
        return {name: value.item() for name, value in metric.compute().items()}

    @pytest.mark.parametrize(("precision", "recall", "f", "er", "sed"), PAPER)
    def test_the_paper_s_tables(self, precision, recall, f, er, sed):
        # 10⁶ true events; the counts that give this precision and recall
        found = round(1e6 * recall)
        scores = self.of(found, round(found * (1 / precision - 1)), 1_000_000 - found)
        assert scores["precision"] == pytest.approx(precision, abs=1e-5)
        assert scores["recall"] == pytest.approx(recall, abs=1e-5)
        assert scores["er"] == pytest.approx(1 - scores["recall"])  # more missed than wrong
        assert scores["f"] == pytest.approx(f, abs=1.01e-3)
        assert scores["er"] == pytest.approx(er, abs=1.01e-3)
        assert scores["sed"] == pytest.approx(sed, abs=1.01e-3)

    def test_formulas(self):
        scores = self.of(6, 5, 2)
        substituted, deleted, inserted = min(2, 5), max(0, 2 - 5), max(0, 5 - 2)
        assert scores["er"] == pytest.approx((substituted + deleted + inserted) / 8)
        assert scores["f"] == pytest.approx(12 / 19)
        assert scores["sed"] == pytest.approx((scores["er"] + 1 - scores["f"]) / 2)
        assert scores["precision"] == pytest.approx(6 / 11)
        assert scores["recall"] == pytest.approx(6 / 8)

    def test_undefined_ratios(self):
        nothing = self.of(0, 0, 0)
        assert nothing == {"f": 0, "er": 0, "sed": 0.5, "precision": 0, "recall": 0}
        silent = self.of(0, 0, 4)  # nothing predicted
        assert silent == {"f": 0, "er": 1, "sed": 1, "precision": 0, "recall": 0}
        invented = self.of(0, 3, 0)  # nothing true
        assert invented == {"f": 0, "er": 3, "sed": 2, "precision": 0, "recall": 0}

    def test_perfect(self):
        assert self.of(9, 0, 0) == {"f": 1, "er": 0, "sed": 0, "precision": 1, "recall": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counting": "double"}, "counting='double' must be one of plain, authors"),
        ({"overlaps": 0}, "overlaps=0 must be at least 1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SoundEventScores(**arguments)


@pytest.mark.parametrize(
    "shapes", [((1, 2, 4), (1, 2, 4)), ((1, 2, 6), (1, 2, 3)), ((2, 6), (2, 6))]
)
def test_bad_shapes(shapes):
    with pytest.raises(ValueError, match=r"must both be \(batch, frames, classes · overlaps\)"):
        SoundEventScores().update(*(torch.zeros(shape) for shape in shapes))


class TestInScores:
    """The metric among the scores of a learner."""

    def test_take(self):
        scores = Scores("test", {"events": SoundEventScores()})
        outputs, targets = random_batch(3)
        scores.add(torch.tensor(0.7), outputs, targets)
        alone = SoundEventScores()
        alone.update(outputs, targets)
        taken = scores.take()
        assert taken.pop("test_loss") == pytest.approx(0.7)
        assert taken == {f"test_{name}": float(x) for name, x in alone.compute().items()}
        assert scores.empty

    def test_gather_and_restore(self):
        unbroken = Scores("train", {"events": SoundEventScores()})
        stopped = Scores("train", {"events": SoundEventScores()})
        for scores in (unbroken, stopped):
            scores.add(torch.tensor(0.5), *random_batch(1))
        resumed = Scores("train", {"events": SoundEventScores()})
        resumed.restore(stopped.gather(distributed=False))
        for scores in (unbroken, resumed):
            scores.add(torch.tensor(0.1), *random_batch(2))
        assert resumed.take() == unbroken.take()
