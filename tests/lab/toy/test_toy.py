"""The learning tests, and the pages that show them."""

import doctest
import json
import re
from pathlib import Path

import pytest
import torch

from phnn import algebra, analysis
from phnn.cli import main
from phnn.lab.reports.toy import draw_algebras, draw_losses, render_toy, write_toy
from phnn.lab.tasks import toy
from phnn.lab.tasks.toy import PROBLEMS, TOLERANCE, Problem, solve

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial.md"


@pytest.fixture(scope="module")
def hamilton():
    return solve(Problem(algebra.quaternion))


def test_given_the_filters_the_layer_finds_the_hamilton_matrices(hamilton):
    assert hamilton.passed
    assert (hamilton.A - algebra.quaternion.structure).norm() < TOLERANCE
    assert hamilton.losses[0] > 0.5
    assert hamilton.losses[-1] < 1e-8
    assert hamilton.nearest.algebra == algebra.quaternion


def test_with_pure_quaternions_the_first_matrix_becomes_null():
    result = solve(Problem(algebra.quaternion, pure=True))
    assert result.passed
    assert result.A[0, :, 1:].norm() < TOLERANCE
    assert (result.A - algebra.quaternion.structure)[1:, :, 1:].norm() < TOLERANCE
    # nothing excites the first column, so it stays where it started
    assert result.A[:, :, 0].norm() > 0.5


def test_with_learned_filters_the_weight_and_the_algebra_are_found():
    problem = Problem(analysis.cross, learns_filters=True)
    result = solve(problem)
    assert result.passed
    assert result.distance < TOLERANCE
    assert (result.A - problem.truth).norm() > 0.1  # another basis of the same span
    assert result.nearest.algebra == analysis.cross


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_problem_is_solved_from_other_seeds(seed):
    assert all(solve(problem, seed=seed).passed for problem in PROBLEMS)


def test_the_problems_are_those_of_the_paper_and_more():
    names = {(problem.name, problem.learned) for problem in PROBLEMS}
    rules = ["quaternion", "complex", "tessarine", "octonion", "cross"]
    both = {(rule, learned) for rule in rules for learned in ("A", "A, F")}
    assert names == both | {("pure quaternion", "A")}


def test_the_same_seed_gives_the_same_result_and_leaves_the_generator_alone():
    problem = Problem(algebra.complex)
    before = torch.get_rng_state()
    first, second, other = (solve(problem, steps=5, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.losses == second.losses
    assert torch.equal(first.A, second.A)
    assert first.losses != other.losses


def test_a_layer_that_has_not_learned_does_not_pass():
    result = solve(Problem(algebra.quaternion), steps=3)
    assert not result.passed
    assert "FAILED" in render_toy([result])


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="steps=0"):
        solve(Problem(algebra.complex), steps=0)


def test_files_depend_on_the_results_alone(hamilton, tmp_path):
    results = [hamilton, solve(Problem(algebra.quaternion, pure=True), steps=2)]
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        paths = [write_toy(results, folder)]
        paths += draw_losses(results, folder) + draw_algebras(results, folder)
        written.append({path.name: path.read_bytes() for path in paths})
    assert written[0] == written[1]
    names = {"toy.json", "toy-loss.png", "toy-loss.svg", "toy-algebra.png", "toy-algebra.svg"}
    assert written[0].keys() == names
    first, second = json.loads(written[0]["toy.json"])["results"]
    assert first["passed"]
    assert first["losses"] == list(hamilton.losses)
    assert first["A_true"] == algebra.quaternion.structure.tolist()
    assert torch.equal(torch.tensor(first["A"]), hamilton.A)
    assert second["determined_columns"] == [False, True, True, True]
    assert not any(second["A_true"][0][0])


def test_learned_bases_are_not_drawn(tmp_path):
    result = solve(Problem(algebra.complex, learns_filters=True), steps=2)
    assert draw_algebras([result], tmp_path) == []


@pytest.fixture
def two_problems(monkeypatch):
    problems = tuple(Problem(algebra.complex, learns_filters=learns) for learns in (False, True))
    monkeypatch.setattr(toy, "PROBLEMS", problems)


@pytest.mark.usefixtures("two_problems")
def test_the_command_prints_a_table_and_succeeds(tmp_path, capsys):
    assert main(["toy", "-o", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert len(re.findall(r"^complex +2 +A(?:, F)? .*complex at .* passed$", table, re.M)) == 2
    assert len(json.loads((tmp_path / "toy.json").read_text())["results"]) == 2


@pytest.mark.usefixtures("two_problems")
def test_the_command_fails_when_a_claim_does(tmp_path, capsys):
    assert main(["toy", "-o", str(tmp_path), "--steps", "3"]) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.skipif(not TUTORIAL.exists(), reason="the documentation is not in the package")
def test_the_tutorial_runs():
    text = TUTORIAL.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(code, {}, "tutorial", str(TUTORIAL), 0)
    assert len(test.examples) > 10
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test).failed == 0
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert pictures
    assert all((TUTORIAL.parent / picture).exists() for picture in pictures)
