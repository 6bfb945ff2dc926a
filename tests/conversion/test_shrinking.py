"""Models shrunk within limits and fitted to calibration data."""

import copy
import json
import re

import pytest
import torch
from torch import nn

import phnn
from phnn.conversion import budget as budgets
from phnn.conversion import convert
from phnn.conversion.calibration import Calibration
from phnn.conversion.candidates import Candidate, Family, count_multiplications
from phnn.conversion.patches import Geometry
from phnn.conversion.sites import Site, find_sites
from phnn.nn import PHConv2d
from phnn.structure import Structure
from phnn.testing import assert_close


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.middle = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.middle(torch.relu(self.norm(self.stem(x))))
        return self.head(torch.relu(x).mean((2, 3)))


@pytest.fixture
def images():
    base = torch.randn(80, 3, 3, 3)
    return nn.functional.interpolate(base, size=(10, 10), mode="bilinear")


@pytest.fixture
def net(images):
    model = Net()
    with torch.no_grad():
        model(images)
    return model.eval()


def distance(model, other, x):
    with torch.no_grad():
        expected, actual = model(x), other(x)
    return float((actual - expected).square().sum() / (expected - expected.mean(0)).square().sum())


LAYERS = [
    nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, padding_mode="reflect"),
    nn.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(1, 0), groups=2),
    nn.Conv2d(4, 8, 3, padding="same", dilation=2),
    nn.Conv3d(2, 4, 2, padding="valid"),
    nn.ConvTranspose1d(4, 6, 4, stride=3, padding=1, output_padding=1),
    nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1, groups=2),
    nn.ConvTranspose2d(4, 8, 3, dilation=2, padding=3),
    nn.Linear(4, 6),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_patches_are_what_the_layer_sees(layer):
    layer = copy.deepcopy(layer).double()
    site = find_sites(nn.Sequential(layer))[0]
    dims = 0 if isinstance(layer, nn.Linear) else len(layer.kernel_size)
    channels = 4 if dims < 3 else 2
    x = torch.randn(2, *([channels] if dims else [5]), *[7] * dims, *([] if dims else [4])).double()
    from phnn.decompose.blocks import canonical

    geometry = Geometry.of(site)
    patches = geometry.take(x, 10**6, torch.Generator())
    weight = canonical(layer.weight.detach(), site.groups, site.transposed)
    expected = layer(x) - (0 if dims == 0 else layer.bias.view(-1, *[1] * dims))
    if dims == 0:
        expected = (expected - layer.bias).flatten(0, 1)
    else:
        expected = expected.movedim(1, -1).flatten(0, -2)
    actual = (patches @ weight.flatten(2).mT).transpose(0, 1).flatten(1)
    assert_close(actual, expected.detach())
    assert geometry.count_positions(x) == len(expected)
    some = geometry.take(x, 5, torch.Generator().manual_seed(1))
    assert some.shape[1] == 5
    assert torch.equal(some, geometry.take(x, 5, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("share", [0.7, 0.4])
def test_a_budget_is_kept_and_data_help(net, images, share):
    plain = convert(net, budget=share)
    fitted = convert(net, budget=share, calibration=images)
    for small in (plain, fitted):
        kept = sum(p.numel() for p in small.parameters())
        assert kept <= share * sum(p.numel() for p in net.parameters())
        assert small.phnn_report.parameters_after == kept
    assert distance(net, fitted, images) < distance(net, plain, images)
    assert fitted.phnn_report.distance is not None
    assert "parameters (" in str(fitted.phnn_report).splitlines()[0]
    assert_close(phnn.to_dense(fitted)(images), fitted(images))
    assert all(not module._forward_pre_hooks for module in net.modules())


def test_compute_is_kept_alone_and_with_a_budget(net, images):
    for options in ({"compute": 0.5}, {"compute": 0.5, "budget": 0.6}):
        report = convert(net, calibration=images, **options).phnn_report
        assert report.multiplications_after <= 0.5 * report.multiplications_before
        assert report.parameters_after <= options.get("budget", 1) * report.parameters_before


def test_n_with_calibration_fits_the_given_structure(net, images):
    by_weight = convert(net, n={"middle": 4})
    by_data = convert(net, n={"middle": 4}, calibration=images)
    assert by_data.middle.structure == by_weight.middle.structure == Structure(4, 4, 4)
    assert torch.equal(by_data.head.weight, net.head.weight)
    assert distance(net, by_data, images) < distance(net, by_weight, images)
    pair = convert(net, n={"middle": (8, 4)}, terms=5, calibration=images)
    assert pair.middle.n == (8, 4)
    fixed = convert(net, algebra="quaternion", include="middle", calibration=images)
    assert fixed.middle.algebra is phnn.algebra.quaternion


@pytest.mark.parametrize(
    ("wrap", "forward"),
    [
        (lambda x: x, None),
        (lambda x: (x,), None),
        (lambda x: {"x": x}, None),
        (lambda x: list(x.split(16)), None),
        (lambda x: [(part, torch.zeros(16)) for part in x.split(16)], lambda m, b: m(b[0])),
    ],
)
def test_calibration_comes_in_many_forms(net, images, wrap, forward):
    calibration = Calibration(net, wrap(images), forward)
    assert calibration.samples == 80
    assert len(calibration.calls) >= 5
    assert len(calibration.fitting) + len(calibration.held_out) == len(calibration.calls)
    small = convert(net, budget=0.6, calibration=wrap(images), forward=forward)
    assert small.phnn_report.distance < 1


def test_the_seed_decides_what_is_drawn(net, images):
    first, same, other = (
        convert(net, budget=0.5, calibration=images, seed=seed).stem.state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_the_mode_of_the_model_is_restored(net, images):
    net.train()
    net.norm.eval()
    convert(net, budget=0.7, calibration=images)
    assert net.training
    assert not net.norm.training


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (torch.full((4, 3, 8, 8), torch.nan), ValueError, "NaN or infinite"),
        (torch.randn(4, 5, 8, 8), ValueError, r"does not run on the calibration data"),
        ([], ValueError, "calibration holds no data"),
        (torch.empty(0, 3, 8, 8), ValueError, "calibration holds no data"),
        ("images", TypeError, "calibration must be a tensor"),
    ],
)
def test_bad_calibration(net, data, error, message):
    with pytest.raises(error, match=message):
        convert(net, budget=0.5, calibration=data)


def test_fewer_samples_than_inputs_are_enough():
    model = nn.Sequential(nn.Linear(1300, 10))  # a moment of low rank
    small = convert(model, budget=0.5, calibration=torch.randn(40, 1300))
    assert small.phnn_report.parameters_after <= 0.5 * small.phnn_report.parameters_before


def test_moments_beyond_the_memory_are_not_computed(net, images, monkeypatch):
    monkeypatch.setattr("phnn.conversion.fitting.MEMORY", 1)
    monkeypatch.setattr("phnn.conversion.fitting.Sums.add", None)
    small = convert(net, budget=0.5, calibration=images)
    assert small.phnn_report.parameters_after <= 0.5 * small.phnn_report.parameters_before


def test_a_budget_that_cannot_be_met_names_what_holds_it(net, images):
    with pytest.raises(ValueError, match=r"budget=0.01 .* leave .*%; most of it is held by \w"):
        convert(net, budget=0.01, calibration=images)
    with pytest.raises(ValueError, match=r"compute=0.0001 cannot be met"):
        convert(net, compute=0.0001, calibration=images)


def test_a_score_decides_the_size(net, images):
    labels = net(images).argmax(1)

    def score(model):
        return (model(images).argmax(1) == labels).float().mean().item()

    small = convert(net, evaluate=score, tolerance=0.2, calibration=images)
    report = small.phnn_report
    assert score(small.eval()) >= 0.8
    first, *tried = report.curve
    assert (first.budget, first.parameters, first.score) == (1.0, report.parameters_before, 1.0)
    assert first.multiplications == report.multiplications_before
    assert len(tried) > 1
    assert all(point.parameters <= point.budget * first.parameters for point in tried)
    (chosen,) = (point for point in report.curve if point.chosen)
    assert chosen.parameters == report.parameters_after
    assert chosen.multiplications == report.multiplications_after
    assert report.distance <= chosen.distance  # lower where layers were refined together
    lower = convert(
        net,
        evaluate=lambda model: 1 - score(model),
        tolerance=0.2,
        calibration=images,
        lower_is_better=True,
    )
    assert lower.phnn_report.parameters_after == report.parameters_after
    with pytest.raises(ValueError, match="evaluate must return a finite number, got None"):
        convert(net, evaluate=lambda model: None, tolerance=0.1, calibration=images)
    with pytest.raises(ValueError, match=r"with \d+% of the parameters.*lower_is_better=True"):
        convert(net, evaluate=lambda m: 1 - score(m), tolerance=0.01, calibration=images)
    counter = iter(range(100))
    with pytest.raises(ValueError, match=r"no smaller network keeps the score .* when it is low"):
        convert(
            net,
            evaluate=lambda model: float(next(counter)),
            tolerance=0.1,
            calibration=images,
            lower_is_better=True,
        )


def test_an_interrupted_search_goes_on_from_its_cache(net, images, tmp_path, monkeypatch):
    first = convert(net, budget=0.5, calibration=images, cache=tmp_path)
    (file,) = tmp_path.glob("*.json")
    kept = json.loads(file.read_text())
    assert set(kept) == {"stem", "middle", "head"}
    monkeypatch.setattr("phnn.conversion.shrinking.by_activations", None)
    again = convert(net, budget=0.5, calibration=images, cache=tmp_path)
    for ours, theirs in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    monkeypatch.undo()
    file.write_text("{damaged")
    convert(net, budget=0.5, calibration=images, cache=tmp_path)
    assert json.loads(file.read_text()) == kept


def test_shared_modules_and_tied_weights_are_fitted_once(images):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
            self.second.weight = self.first.weight
            self.again = nn.Linear(24, 24)

        def forward(self, x):
            return self.second(torch.relu(self.again(self.again(self.first(x)))))

    model, x = Shared().eval(), torch.randn(64, 24)
    small = convert(model, budget=0.5, calibration=x)
    assert small.first.F is small.second.F
    assert small.first.A is small.second.A
    kept = sum(p.numel() for p in small.parameters())
    assert kept <= 0.5 * sum(p.numel() for p in model.parameters())
    assert_close(phnn.to_dense(small)(x), small(x))


def test_the_cheapest_choice_within_limits_by_brute_force():
    import itertools

    generator = torch.Generator().manual_seed(0)
    layers = {}
    for name in "abc":
        sizes = (torch.randperm(50, generator=generator)[:5] + 1).tolist()
        errors = sorted(torch.rand(5, generator=generator).mul(0.9).tolist())
        work = (torch.randperm(50, generator=generator)[:5] + 1).tolist()
        layers[name] = [
            Candidate(None, s, w, e)
            for s, w, e in zip(sorted(sizes, reverse=True), work, errors, strict=True)
        ]
    for limits in (budgets.Limits(60), budgets.Limits(60, 70), budgets.Limits(multiplications=60)):
        found = budgets.choose(layers, limits)
        every = [dict(zip(layers, c, strict=True)) for c in itertools.product(*layers.values())]
        costs = [sum(x.cost for x in c.values()) for c in every if limits.hold(c)]
        assert found is not None
        assert limits.hold(found)
        # a Lagrangian finds the lower hull; what lies above it may be missed by a little
        assert sum(x.cost for x in found.values()) <= 1.5 * min(costs) + 1e-9
    assert budgets.choose(layers, budgets.Limits(1)) is None


def test_multiplications_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(1, 16, 9, 9)
    for n, terms in (((32, 1), 3), ((1, 16), 3), ((8, 4), 2)):
        layer = PHConv2d(16, 32, 3, stride=2, padding=1, bias=False, n=n, terms=terms).eval()
        dense = layer.to_dense()
        site = Site(dense, ("",), PHConv2d)
        positions = Geometry.of(site).count_positions(x)
        program = torch.export.export(layer, (x,)).module()  # chooses without the assembly
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            program(x)
        expected = counter.get_total_flops() / 2
        count = count_multiplications(site, layer.structure, positions)
        assert 0.95 <= count / expected <= 1.05  # the border of a strided input is not counted


def test_families_hold_the_shapes_they_name():
    every = Family().shapes(8, 4, 9)
    assert (8, 1) in every
    assert (1, 4) in every
    assert (2, 2) in every
    assert (8, 2) in every
    assert Family(rectangular=False, low_rank=False).shapes(8, 4, 9) == [(2, 2), (4, 4)]


class Experts(nn.Module):
    """Layers, one of which never runs, and experts that are parameters of the model."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(16, 32), nn.Linear(32, 16)
        self.idle = nn.Linear(16, 16)
        self.experts = nn.Parameter(torch.randn(2, 16, 16))

    def forward(self, x):
        return (self.rest(self.first(x).relu()) @ self.experts).sum(0)


def test_the_report_says_what_was_not_done(monkeypatch):
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(64, 16)
    small = convert(model, n=4, calibration=x)
    report = small.phnn_report
    first, second, untouched, weights, *_ = str(report).splitlines()
    facts = (
        r"1,856 → 1,\d+ parameters \(\S+%\)",
        r"file \S+ → \S+ MB",
        r"\S+ → \S+ M multiplications for a sample \(\d+%\)",
        r"expected error \S+% of the outputs' variance",
    )
    assert re.fullmatch("; ".join(facts), first)
    assert second.startswith("3 of 3 layers replaced; layers fitted in order")
    assert (
        untouched
        == f"{512 / report.parameters_before:.1%} of the parameters untouched: experts 512"
    )
    assert weights == "fitted to weights instead of data, which did not reach them: idle"
    size = sum(tensor.nbytes for tensor in small.state_dict().values())
    assert report.bytes_after == size
    monkeypatch.setattr("phnn.conversion.fitting.MEMORY", 8 * 20 * 20)
    text = str(convert(model, n=4, calibration=x, refine=0).phnn_report)
    assert "as the second moments of their inputs take too much memory: rest" in text
