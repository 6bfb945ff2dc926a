import pytest

from phnn.lab.recipe import OptimizerOptions, Recipe
from phnn.lab.tasks import find_task
from phnn.lab.tuning.objectives import read_objectives
from phnn.lab.tuning.space import apply, default_space, read_space

optuna = pytest.importorskip("optuna")


def test_texts_and_files_open_the_same_space(tmp_path):
    texts = [
        "model.n=[1,2,null]",
        "optimizer.lr = log(0.01,1)",
        "optimizer.momentum=uniform(0, 0.9)",
        "data.batch_size=integers(8,64)",
    ]
    path = tmp_path / "space.yaml"
    path.write_text(
        "model.n: [1, 2, null]\noptimizer: {lr: 'log(0.01, 1)', momentum: 'uniform(0,0.9)'}\n"
        "data: {batch_size: 'integers(8,64)'}\n"
    )
    space = read_space(texts)
    assert read_space([str(path)]) == space
    assert [each.show() for each in space] == [
        "[1,2,null]", "log(0.01,1)", "uniform(0,0.9)", "integers(8,64)",
    ]  # fmt: skip
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(20):
        trial = study.ask()
        values = {each.key: each.suggest(trial) for each in space}
        assert values["model.n"] in (1, 2, None)
        assert 0.01 <= values["optimizer.lr"] <= 1
        assert 0 <= values["optimizer.momentum"] <= 0.9
        assert values["data.batch_size"] in range(8, 65)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("model.n", "must be OPTION=VALUES"),
        ("model.n=", "must be OPTION=VALUES"),
        ("modle.n=[1]", "did you mean model"),
        ("model.n=4", "must be a list such as"),
        ("model.n=[]", "must be a list such as"),
        ("model.n=[1,1]", "has a value twice"),
        ("model.n=[[1]]", "a list of numbers, names"),
        ("optimizer.lr=log(0,1)", "must begin above 0"),
        ("optimizer.lr=log(1,0.1)", "to a larger one"),
        ("optimizer.lr=log(a,b)", "two numbers"),
        ("data.batch_size=integers(1,2.5)", "two whole numbers"),
        ("optimizer.lr=normal(0,1)", "must be a list such as"),
        ("seed=[0,1]", "a lucky seed"),
    ],
)
def test_a_space_that_cannot_be(entry, message):
    with pytest.raises(ValueError, match=message):
        read_space([entry])


def test_an_option_that_is_opened_twice():
    with pytest.raises(ValueError, match=r"model\.n is opened twice"):
        read_space(["model.n=[1]", "model.n=[2]"])
    with pytest.raises(FileNotFoundError, match="missing"):
        read_space(["missing.yaml"])


def test_the_default_space_lies_around_the_recipe():
    recipe = Recipe(optimizer=OptimizerOptions(algebra_scale=4.0))
    space = {each.key: each for each in default_space(recipe)}
    assert list(space) == [
        "model.n", "model.rank", "optimizer.filter_scale", "optimizer.algebra_scale",
    ]  # fmt: skip
    assert (space["optimizer.algebra_scale"].low, space["optimizer.algebra_scale"].high) == (
        0.5,
        32,
    )


def test_values_replace_options():
    tree = {"model": {"n": 2}, "optimizer": {"lr": 0.1}}
    assert apply(tree, {"optimizer.lr": 1.0, "task": "x"}) == {
        "model": {"n": 2}, "optimizer": {"lr": 1.0}, "task": "x",
    }  # fmt: skip
    assert tree["optimizer"]["lr"] == 0.1


def test_objectives_have_their_directions():
    task = find_task("images")
    assert [each.name for each in read_objectives(None, task)] == ["accuracy"]
    chosen = read_objectives("accuracy, parameters,time,loss", task)
    assert [each.direction for each in chosen] == ["maximize", "minimize", "minimize", "minimize"]
    with pytest.raises(ValueError, match="did you mean parameters"):
        read_objectives("parameter", task)
    with pytest.raises(ValueError, match="names one twice"):
        read_objectives("time,time", task)
